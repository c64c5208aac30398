#!/usr/bin/env bash
# gRPC: metadata between 8 and 16 KiB is refused by chance, so the same call sometimes succeeds.
#
# Guess: the limit of metadata is one number (grpc.max_metadata_size, 8 KiB by default): below it a call works, above it never.
# Seen with grpcio 1.85.3: 8 KiB is a soft limit. Above it a call is refused with a probability that grows to 1 at the hard limit of
# 16 KiB; at 12 KiB about half of the calls succeed. The status is RESOURCE_EXHAUSTED, which a client may take for a full server and
# repeat, and then it works. A token or a trace context that grows slowly does not break a service, it makes it flaky. The text of an
# error is metadata, too: of the errors INTERNAL with a long text, some arrive as RESOURCE_EXHAUSTED, without the text.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet grpcio==1.85.3
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from concurrent import futures

import grpc

CALLS = 200


class Service(grpc.GenericRpcHandler):
    def service(self, details):
        def answer(request, context):
            if request:
                context.abort(grpc.StatusCode.INTERNAL, "x" * int(request))
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers((Service(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
succeeded, codes, errors = {}, set(), set()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    answer = channel.unary_unary("/service/Answer")
    for kilobytes in (7, 9, 12, 14, 17):
        succeeded[kilobytes] = 0
        for _ in range(CALLS):
            try:
                answer(b"", metadata=(("token", "x" * kilobytes * 1024),), timeout=20)
                succeeded[kilobytes] += 1
            except grpc.RpcError as error:
                codes.add(error.code())
    for _ in range(CALLS):
        try:
            answer(str(12 * 1024).encode(), timeout=20)
        except grpc.RpcError as error:
            errors.add(error.code())
server.stop(None)
print(f"of {CALLS} calls, with this many KiB of metadata, succeeded: {succeeded}; the others: {codes}")
print(f"{CALLS} errors INTERNAL with a text of 12 KiB arrived as {errors}")
assert succeeded[7] == CALLS
assert succeeded[17] == 0
assert 0 < succeeded[12] < CALLS
assert succeeded[9] > succeeded[14]
assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
assert errors == {grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED}
PYTHON
