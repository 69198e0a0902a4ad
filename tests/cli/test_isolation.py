"""What commands run of transformers reaches no network, no pickle and no terminal."""

import socket

import pytest

from rope_xp import RopeError
from rope_xp._cli.isolation import isolate


@pytest.mark.parametrize("event", ["socket.connect", "open"])
def test_isolate_rejects_network_and_pickles_until_it_ends(event, tmp_path, capsys):
    (tmp_path / "model.bin").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def ask():
            print("something")
            if event == "open":
                (tmp_path / "model.bin").read_bytes()
            else:
                with socket.socket() as client:
                    client.connect(server.getsockname())

        with isolate(), pytest.raises(RopeError, match=f"network and no pickle; rejected {event}"):
            ask()
        assert capsys.readouterr().out == ""
        ask()
