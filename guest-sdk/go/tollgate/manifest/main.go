// Command manifest puts a policy's manifest into its module: `go run ./tollgate/manifest
// MANIFEST.json MODULE.wasm`.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
)

const section = "tollgate.manifest"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manifest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: manifest MANIFEST.json MODULE.wasm")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var manifest bytes.Buffer
	if err := json.Compact(&manifest, text); err != nil {
		return fmt.Errorf("%s isn't JSON: %w", args[0], err)
	}
	module, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(module, []byte("\x00asm\x01\x00\x00\x00")) {
		return fmt.Errorf("%s is no WebAssembly module; build it with GOOS=wasip1 GOARCH=wasm", args[1])
	}
	// A custom section: id 0, its length, the length of its name, its name, its content.
	body := append(binary.AppendUvarint(nil, uint64(len(section))), section...)
	body = append(body, manifest.Bytes()...)
	module = append(binary.AppendUvarint(append(module, 0), uint64(len(body))), body...)
	return os.WriteFile(args[1], module, 0o644)
}
