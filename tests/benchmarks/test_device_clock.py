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

    def call(self, host, device):
        """Keep the host busy for a while, and then hand work to the device."""
        self.now += host
        self.free = max(self.free, self.now) + device
        return ()

    def read(self):
        self.reads += 1
        self.call(0.0, READ)

    def wait(self, *_):
        self.now = max(self.now, self.free)

    def event(self):
        found = SimpleNamespace(synchronize=self.wait)
        found.record = lambda: setattr(found, "at", max(self.free, self.now))
        return found


def clock(name, queue):
    if name == "host":
        behind = device_clock.by_host(queue.read, queue.wait, lambda: queue.now)
    else:
        behind = device_clock.by_events(
            queue.read,
            queue.event,
            lambda event: event.at <= queue.now,
            lambda start, stop: (stop.at - start.at) * 1e3,
        )
    return device_clock.hiding(behind)


@pytest.mark.parametrize("name", ["events", "host"])
# A tenth of the reads; most of them; longer than the first reads take, which are then doubled; and
# too slow for any, so that it gives up.
@pytest.mark.parametrize("host", [5e-6, 45e-6, 300e-6, 10e-3])
def test_hiding_times_the_device_and_says_where_the_host_is_too_slow(name, host):
    queue = Queue()
    timing = clock(name, queue)(lambda: queue.call(host, 31e-6))
    assert timing.hidden == (host < 10e-3)
    assert queue.reads <= 4 * device_clock.MOST_READS
    if timing.hidden:
        assert timing.seconds == pytest.approx(31e-6, rel=1e-6)
