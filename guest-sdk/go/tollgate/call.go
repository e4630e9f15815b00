package tollgate

import (
	"encoding/binary"
	"math"
)

// Call is a call, reduced to the fields and metadata keys that the manifest declares.
type Call struct {
	// Method is a position in the manifest's methods.
	Method uint32
	view   []byte
}

// FieldCount is the number of fields and metadata keys.
func (c *Call) FieldCount() int { return int(binary.LittleEndian.Uint32(c.view[4:])) }

// The 16 bytes of a field.
func (c *Call) entry(field int) []byte {
	if field < 0 || field >= c.FieldCount() {
		panic("the manifest declares no field " + decimal(field))
	}
	return c.view[8+16*field:][:16]
}

// Has reports whether the field is there.
func (c *Call) Has(field int) bool { return binary.LittleEndian.Uint32(c.entry(field)) != 0 }

// Uint is an unsigned integer; of other numbers their bits.
func (c *Call) Uint(field int) (uint64, bool) {
	entry := c.entry(field)
	return binary.LittleEndian.Uint64(entry[8:]), binary.LittleEndian.Uint32(entry) != 0
}

// Int is a signed integer or an enum.
func (c *Call) Int(field int) (int64, bool) {
	bits, ok := c.Uint(field)
	return int64(bits), ok
}

func (c *Call) Bool(field int) (bool, bool) {
	bits, ok := c.Uint(field)
	return bits != 0, ok
}

func (c *Call) Float(field int) (float32, bool) {
	bits, ok := c.Uint(field)
	return math.Float32frombits(uint32(bits)), ok
}

func (c *Call) Double(field int) (float64, bool) {
	bits, ok := c.Uint(field)
	return math.Float64frombits(bits), ok
}

// Bytes has the bytes of a string or bytes field. They are the call's: copy what has to outlive it.
// A comparison (string(b) == "x") and a look-up (m[string(b)]) copy nothing.
func (c *Call) Bytes(field int) ([]byte, bool) {
	entry := c.entry(field)
	if binary.LittleEndian.Uint32(entry) == 0 {
		return nil, false
	}
	return c.view[binary.LittleEndian.Uint32(entry[8:]):][:binary.LittleEndian.Uint32(entry[4:])], true
}

// Text is a copy of a string field, for the garbage collector to free.
func (c *Call) Text(field int) (string, bool) {
	bytes, ok := c.Bytes(field)
	return string(bytes), ok
}

// ValueCount is the number of a metadata key's values: none if the key is absent or withheld.
func (c *Call) ValueCount(entry int) int { return int(binary.LittleEndian.Uint32(c.entry(entry))) }

// Value is the value of a metadata key at a place, from 0. The bytes are the call's, as those of
// Bytes.
func (c *Call) Value(entry, place int) ([]byte, bool) {
	if place < 0 || place >= c.ValueCount(entry) {
		return nil, false
	}
	values := c.view[binary.LittleEndian.Uint32(c.entry(entry)[8:]):]
	for {
		len := binary.LittleEndian.Uint32(values)
		if place == 0 {
			return values[4:][:len], true
		}
		values = values[4+len:]
		place--
	}
}

// decimal is strconv.Itoa of a number that isn't used for anything but a panic's text.
func decimal(number int) string {
	if number < 0 {
		return "-" + decimal(-number)
	}
	if number < 10 {
		return string(rune('0' + number))
	}
	return decimal(number/10) + decimal(number%10)
}
