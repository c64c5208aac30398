#!/usr/bin/env bash
# Arrow Flight: the least time between two attempts to connect is also the most time that an attempt may take.
#
# Guess: gRPC's option `grpc.min_reconnect_backoff_ms` is what its documentation says, the shortest time between two attempts to connect; with
# 100 a client comes back soon after a server has restarted.
# Seen with pyarrow 26.0.1, whose gRPC is its own: it is the time limit of an attempt, too, with its handshakes. With 100, a server whose first
# frame comes after half a second is unavailable; without the option (20 s), or with 5000, the same call waits and is answered. In grpcio
# 1.84.0 a call with 100 is answered, too, so trying the option there shows nothing.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import socket
import threading
import time

import pyarrow.flight as fl


class Server(fl.FlightServerBase):
    def list_actions(self, context):
        return [("greet", "a greeting")]


server = Server("grpc://127.0.0.1:0")


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass  # the client has given up


def relay(listening):
    while True:
        client, _ = listening.accept()
        time.sleep(0.5)  # the network to a server that is far away
        try:
            other = socket.create_connection(("127.0.0.1", server.port))
        except OSError:
            return  # the server has ended
        threading.Thread(target=copy, args=(client, other), daemon=True).start()
        threading.Thread(target=copy, args=(other, client), daemon=True).start()


for option, expected in ((None, "answered"), (100, "unavailable"), (5000, "answered")):
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=relay, args=(listening,), daemon=True).start()
    options = [] if option is None else [("grpc.min_reconnect_backoff_ms", option)]
    with fl.connect(f"grpc://127.0.0.1:{listening.getsockname()[1]}", generic_options=options) as client:
        try:
            client.list_actions(fl.FlightCallOptions(timeout=15))
            found = "answered"
        except fl.FlightUnavailableError as error:
            assert "timed out before receiving SETTINGS frame" in str(error), error
            found = "unavailable"
    print(f"min_reconnect_backoff_ms {option}: {found}")
    assert found == expected
server.shutdown()
PYTHON
