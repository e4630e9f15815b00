// Command manifest puts a policy's manifest into its module: `go run ./tollgate/manifest
// MANIFEST.json MODULE.wasm`. It replaces the one that the module has: go build leaves a module that
// is up to date as it is.
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
	module, err = without(module)
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	// A custom section: id 0, its length, the length of its name, its name, its content.
	body := append(named(), manifest.Bytes()...)
	module = append(binary.AppendUvarint(append(module, 0), uint64(len(body))), body...)
	return os.WriteFile(args[1], module, 0o644)
}

// The begin of the manifest's section: the length of its name, and its name.
func named() []byte {
	return append(binary.AppendUvarint(nil, uint64(len(section))), section...)
}

// The module without its manifest.
func without(module []byte) ([]byte, error) {
	const preamble = 8
	kept := append([]byte(nil), module[:preamble]...)
	for at := preamble; at < len(module); {
		size, width := binary.Uvarint(module[at+1:])
		begin := at + 1 + width
		if width <= 0 || size > uint64(len(module)-begin) {
			return nil, fmt.Errorf("the section at byte %d is cut off", at)
		}
		end := begin + int(size)
		if module[at] != 0 || !bytes.HasPrefix(module[begin:end], named()) {
			kept = append(kept, module[at:end]...)
		}
		at = end
	}
	return kept, nil
}
