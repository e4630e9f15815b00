// What the vectors are checked with (guest-sdk/vectors/README.md): says what it reads, or answers
// as it is told.
package main

import (
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"strings"

	"tollgate-policy/tollgate"
)

type witness struct {
	tollgate.Base
	says  bool
	lines []string
}

func init() {
	tollgate.Register(func(config []byte) (tollgate.Policy, error) {
		lines := strings.Split(string(config), "\n")
		if lines[0] != "w" && lines[0] != "p" {
			return nil, errors.New("the first letter is w or p")
		}
		return &witness{says: lines[0] == "w", lines: lines[1:]}, nil
	})
}

func main() {}

func (w *witness) Request(call *tollgate.Call, answer *tollgate.Answer) { w.evaluate(call, answer) }
func (w *witness) Reply(call *tollgate.Call, answer *tollgate.Answer)   { w.evaluate(call, answer) }

func (w *witness) evaluate(call *tollgate.Call, answer *tollgate.Answer) {
	if w.says {
		answer.Deny(tollgate.Internal, say(call, w.line()))
	} else {
		w.parrot(answer)
	}
}

func (w *witness) line() string {
	if len(w.lines) == 0 {
		return ""
	}
	line := w.lines[0]
	w.lines = w.lines[1:]
	return line
}

// `d STATUS HEX`, or any of `c FIELD`, `u FIELD NUMBER`, `x FIELD HEX`, `m KEY HEX`, `r KEY`, `w
// MICROSECONDS`, `p PRIORITY`, `l LABEL`, one after the other.
func (w *witness) parrot(answer *tollgate.Answer) {
	for line := w.line(); line != ""; line = w.line() {
		words := append(strings.Split(line, " "), "")
		if words[0] == "l" {
			answer.Route(words[1])
			continue
		}
		first := int(number(words[1]))
		switch words[0] {
		case "c":
			answer.Clear(first)
		case "u":
			answer.SetUint(first, number(words[2]))
		case "x":
			answer.SetBytes(first, unhex(words[2]))
		case "m":
			answer.SetMetadataBytes(first, unhex(words[2]))
		case "r":
			answer.RemoveMetadata(first)
		case "w":
			answer.Delay(uint32(first))
		case "p":
			answer.Priority(uint32(first))
		default:
			answer.DenyBytes(tollgate.Status(first), unhex(words[2]))
		}
	}
}

func say(call *tollgate.Call, kinds string) string {
	text := strconv.FormatUint(uint64(call.Method), 10)
	for field, kind := range []byte(kinds) {
		text += "|"
		if call.Has(field) {
			text += read(call, field, kind)
		} else {
			text += "-"
		}
	}
	if call.FieldCount() != len(kinds) {
		text += "!"
	}
	return text
}

func read(call *tollgate.Call, field int, kind byte) string {
	switch kind {
	case 't':
		text, _ := call.Text(field)
		return text
	case 'x':
		bytes, _ := call.Bytes(field)
		return hex.EncodeToString(bytes)
	case 'v':
		count := call.ValueCount(field)
		values := make([]string, count)
		for place := range values {
			value, _ := call.Value(field, place)
			values[place] = hex.EncodeToString(value)
		}
		return strconv.Itoa(count) + ":" + strings.Join(values, ",")
	case 'u':
		value, _ := call.Uint(field)
		return strconv.FormatUint(value, 10)
	case 'i':
		value, _ := call.Int(field)
		return strconv.FormatInt(value, 10)
	case 'b':
		if value, _ := call.Bool(field); value {
			return "T"
		}
		return "F"
	case 'f':
		value, _ := call.Float(field)
		return strconv.FormatUint(uint64(math.Float32bits(value)), 10)
	default:
		value, _ := call.Double(field)
		return strconv.FormatUint(math.Float64bits(value), 10)
	}
}

func number(word string) uint64 {
	number, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		panic(err)
	}
	return number
}

func unhex(word string) []byte {
	bytes, err := hex.DecodeString(word)
	if err != nil {
		panic(err)
	}
	return bytes
}
