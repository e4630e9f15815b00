#!/usr/bin/env bash
# Writes editions.binpb beside it: the conformance suite's messages of edition 2023, as a descriptor set. They need a protoc
# that knows editions, which is in the Python package grpcio-tools. Run it when the runner's version changes, after
# .ci/conformance has fetched the runner.
set -euo pipefail
cd "$(dirname "$0")/../.."

TARGET=${CARGO_TARGET_DIR:-target}
python3 -m venv "$TARGET/protobuf-conformance/venv"
"$TARGET/protobuf-conformance/venv/bin/pip" install --quiet grpcio-tools==1.85.1
"$TARGET/protobuf-conformance/venv/bin/python" -m grpc_tools.protoc \
    --proto_path "$(echo "$TARGET"/protobuf-conformance/*/package/include)" \
    --include_imports --descriptor_set_out conformance/protobuf/editions.binpb \
    google/protobuf/test_messages_{proto2_editions,proto3_editions,edition2023}.proto
