package tollgate

import (
	"encoding/binary"
	"math"
	"unsafe"
)

const (
	messageBytes = 1024
	effects      = 51
	recordBytes  = 16
	changedBytes = 64 << 10
)

const (
	verdictAllow   = 1
	verdictDeny    = 2
	verdictEffects = 3
)

const (
	kindClear          = 1
	kindSet            = 2
	kindSetBytes       = 3
	kindSetMetadata    = 4
	kindRemoveMetadata = 5
	kindDelay          = 6
	kindPriority       = 7
	kindRoute          = 8
)

// Answer is what becomes of a call: it passes, unless the policy sets something here. The last of
// Deny and the effects counts.
type Answer struct {
	verdict uint32
	status  Status
	bytes   []byte
}

// Deny ends the call. The caller sees 1,024 bytes of the message at most.
func (a *Answer) Deny(status Status, message string) {
	a.DenyBytes(status, unsafe.Slice(unsafe.StringData(message), len(message)))
}

// DenyBytes is Deny with the message's UTF-8.
func (a *Answer) DenyBytes(status Status, message []byte) {
	if len(message) > messageBytes {
		end := messageBytes
		for end > 0 && message[end]&0xc0 == 0x80 {
			end--
		}
		message = message[:end]
	}
	*a = Answer{verdictDeny, status, arena.copy(message)}
}

// Changes of an allowed message; field is a position in the manifest's changes (or reply_changes).

func (a *Answer) Clear(field int)                 { a.record(kindClear, field, 0) }
func (a *Answer) SetUint(field int, value uint64) { a.record(kindSet, field, value) }
func (a *Answer) SetInt(field int, value int64)   { a.record(kindSet, field, uint64(value)) }
func (a *Answer) SetFloat(field int, value float32) {
	a.record(kindSet, field, uint64(math.Float32bits(value)))
}
func (a *Answer) SetDouble(field int, value float64) {
	a.record(kindSet, field, math.Float64bits(value))
}
func (a *Answer) SetBool(field int, value bool) {
	var bits uint64
	if value {
		bits = 1
	}
	a.record(kindSet, field, bits)
}

// SetText sets a string field.
func (a *Answer) SetText(field int, value string) {
	a.SetBytes(field, unsafe.Slice(unsafe.StringData(value), len(value)))
}

// SetBytes sets a string or bytes field.
func (a *Answer) SetBytes(field int, value []byte) { a.recordBytes(kindSetBytes, field, value) }

// The metadata of an allowed call; key is a position in the manifest's metadata_changes (or
// reply_metadata_changes).

// SetMetadata sets one value instead of all that the key has: printable ASCII.
func (a *Answer) SetMetadata(key int, value string) {
	a.SetMetadataBytes(key, unsafe.Slice(unsafe.StringData(value), len(value)))
}

// SetMetadataBytes is SetMetadata for a key that ends in -bin, whose values are any bytes.
func (a *Answer) SetMetadataBytes(key int, value []byte) { a.recordBytes(kindSetMetadata, key, value) }

// RemoveMetadata removes the key with all its values.
func (a *Answer) RemoveMetadata(key int) { a.record(kindRemoveMetadata, key, 0) }

// Delay lets an allowed call wait, a second at most: capability delay.
func (a *Answer) Delay(microseconds uint32) { a.record(kindDelay, 0, uint64(microseconds)) }

// Priority is 0, what all calls have, to 7, which comes first: capability priority.
func (a *Answer) Priority(priority uint32) { a.record(kindPriority, 0, uint64(priority)) }

// Route is the route of an allowed request, 1 to 64 of a-z 0-9 - _ . : capability route.
func (a *Answer) Route(label string) {
	a.recordBytes(kindRoute, 0, unsafe.Slice(unsafe.StringData(label), len(label)))
}

// Kinds 1 to 3 are about one field, 4 and 5 about one metadata key, each later one about the call.
func about(kind uint32) uint32 {
	switch {
	case kind <= kindSetBytes:
		return kindClear
	case kind <= kindRemoveMetadata:
		return kindSetMetadata
	default:
		return kind
	}
}

func (a *Answer) recordBytes(kind uint32, field int, value []byte) {
	if len(value) > changedBytes {
		panic("a value has " + decimal(len(value)) + " bytes, above the limit of " + decimal(changedBytes))
	}
	value = arena.copy(value)
	a.record(kind, field, uint64(address(value))|uint64(len(value))<<32)
}

// A record of the effect list. One that is there for this field, key or kind is written over.
func (a *Answer) record(kind uint32, field int, value uint64) {
	if a.verdict != verdictEffects {
		*a = Answer{verdictEffects, 0, arena.take(recordBytes * effects)[:0]}
	}
	at := 0
	for at < len(a.bytes) {
		there := a.bytes[at:]
		its := binary.LittleEndian.Uint32(there)
		if about(its) == about(kind) && binary.LittleEndian.Uint32(there[4:]) == uint32(field) {
			break
		}
		at += recordBytes
	}
	if at == len(a.bytes) {
		if at == recordBytes*effects {
			panic("a call has at most " + decimal(effects) + " effects")
		}
		a.bytes = a.bytes[:at+recordBytes]
	}
	record := a.bytes[at:]
	binary.LittleEndian.PutUint32(record, kind)
	binary.LittleEndian.PutUint32(record[4:], uint32(field))
	binary.LittleEndian.PutUint64(record[8:], value)
}

// The messages, records and values of one evaluation, until the next one. They stay where they are:
// a full block is kept beside the next one. The memory is used again, so that an evaluation
// allocates only until the largest has been.
type blocks struct {
	free []byte
	full [][]byte
}

var arena = blocks{free: make([]byte, 0, 4096)}

func (b *blocks) reset() {
	clear(b.full)
	b.full = b.full[:0]
	b.free = b.free[:0]
}

func (b *blocks) take(count int) []byte {
	if count > cap(b.free)-len(b.free) {
		b.full = append(b.full, b.free)
		b.free = make([]byte, 0, max(2*cap(b.free), count))
	}
	begin := len(b.free)
	b.free = b.free[:begin+count]
	return b.free[begin:][:count:count]
}

func (b *blocks) copy(bytes []byte) []byte {
	taken := b.take(len(bytes))
	copy(taken, bytes)
	return taken
}

func address(bytes []byte) uint32 { return uint32(uintptr(unsafe.Pointer(unsafe.SliceData(bytes)))) }
