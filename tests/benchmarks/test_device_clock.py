"""The clocks of the report on GPUs, on devices that are made up: a queue, and what is in it."""

from types import SimpleNamespace

import pytest

from asv_benchmarks.shared import device_clock

READ = 0.25e-3


class Queue:
    """A device that works off what a host hands it, each with a time of its own."""

    def __init__(self):
        self.now = 0.0  # of the host
        self.free = 0.0  # when the device has done all that it was handed
        self.reads = 0

    def work(self, seconds):
        self.free = max(self.free, self.now) + seconds

    def read(self):
        self.reads += 1
        self.work(READ)

    def wait(self, *_):
        self.now = max(self.now, self.free)

    def event(self):
        found = SimpleNamespace(synchronize=self.wait)
        found.record = lambda: setattr(found, "at", max(self.free, self.now))
        return found

    def call(self, host, device):
        """A call that keeps the host busy for a while, and then hands work to the device."""

        def action():
            self.now += host
            self.work(device)
            return ()

        return action


def clocks(queue):
    events = device_clock.by_events(
        queue.read,
        queue.event,
        lambda event: event.at <= queue.now,
        lambda start, stop: (stop.at - start.at) * 1e3,
    )
    host = device_clock.by_host(queue.read, queue.wait, lambda: queue.now)
    return {"events": device_clock.hiding(events), "host": device_clock.hiding(host)}


@pytest.mark.parametrize("name", ["events", "host"])
# A tenth of the reads; most of them; longer than the first reads take, which are then doubled.
@pytest.mark.parametrize("host", [5e-6, 45e-6, 300e-6])
def test_the_device_is_timed_and_not_the_host(name, host):
    queue = Queue()
    seconds = clocks(queue)[name]
    timing = seconds(queue.call(host, 31e-6))
    assert timing.seconds == pytest.approx(31e-6, rel=1e-6)
    assert timing.hidden


@pytest.mark.parametrize("name", ["events", "host"])
def test_a_host_that_is_too_slow_is_told_of(name):
    queue = Queue()
    timing = clocks(queue)[name](queue.call(10e-3, 31e-6))
    assert not timing.hidden
    assert queue.reads <= 4 * device_clock.MOST_READS  # it gives up
