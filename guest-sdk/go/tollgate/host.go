package tollgate

import "unsafe"

// Host functions: a module imports those that it calls, and the manifest has to declare their
// capability.

//go:wasmimport tollgate log
//go:noescape
func hostLog(level uint32, line unsafe.Pointer, len uint32)

// Counter adds to the manifest's counter with this number.
//
//go:wasmimport tollgate counter
func Counter(id uint32, delta int64)

// Gauge sets the manifest's gauge with this number.
//
//go:wasmimport tollgate gauge
func Gauge(id uint32, value int64)

// Histogram records a value in the manifest's histogram with this number.
//
//go:wasmimport tollgate histogram
func Histogram(id uint32, value int64)

// NowMs is Unix time in milliseconds: capability clock. Package time has the same time.
//
//go:wasmimport tollgate now_ms
func NowMs() int64

// MonotonicUs is microseconds since an arbitrary time, and never goes back: capability clock.
//
//go:wasmimport tollgate monotonic_us
func MonotonicUs() int64

//go:wasmimport tollgate random
//go:noescape
func hostRandom(bytes unsafe.Pointer, len uint32)

//go:wasmimport tollgate state_get
//go:noescape
func hostStateGet(key unsafe.Pointer, keyLen uint32, room unsafe.Pointer, roomLen uint32) int32

//go:wasmimport tollgate state_set
//go:noescape
func hostStateSet(key unsafe.Pointer, keyLen uint32, value unsafe.Pointer, valueLen uint32) int32

//go:wasmimport tollgate state_replace
//go:noescape
func hostStateReplace(key unsafe.Pointer, keyLen uint32, old unsafe.Pointer, oldLen uint32, value unsafe.Pointer, valueLen uint32) int32

//go:wasmimport tollgate state_delete
//go:noescape
func hostStateDelete(key unsafe.Pointer, keyLen uint32) int32

//go:wasmimport tollgate state_add
//go:noescape
func hostStateAdd(key unsafe.Pointer, keyLen uint32, delta int64) int64

//go:wasmimport wasi_snapshot_preview1 proc_exit
func exit(code int32)

func pointer(bytes []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(bytes)) }

// Level is the severity of a log line.
type Level uint32

const (
	Error   Level = 1
	Warning Level = 2
	Info    Level = 3
	Debug   Level = 4
)

// Log writes a line to the policy's log.
func Log(level Level, line string) {
	hostLog(uint32(level), unsafe.Pointer(unsafe.StringData(line)), uint32(len(line)))
}

// Random fills at most 256 bytes: capability random.
func Random(bytes []byte) { hostRandom(pointer(bytes), uint32(len(bytes))) }

// The state that all instances of the policy share: capability state.

// StateGet copies a key's value to room, as much as fits, and returns its whole length; false if
// there is no such key.
func StateGet(key, room []byte) (int, bool) {
	length := hostStateGet(pointer(key), uint32(len(key)), pointer(room), uint32(len(room)))
	return int(length), length >= 0
}

// StateSet reports whether there was room for the value.
func StateSet(key, value []byte) bool {
	return hostStateSet(pointer(key), uint32(len(key)), pointer(value), uint32(len(value))) == 0
}

// Replaced is the outcome of StateReplace.
type Replaced int32

const (
	Done    Replaced = 0
	Full    Replaced = 1
	Changed Replaced = 2
)

// StateReplace replaces a key's value if it still is old (nil: there is none): compare and swap.
func StateReplace(key, old, value []byte) Replaced {
	oldLen := uint32(len(old))
	if old == nil {
		oldLen = 1<<32 - 1
	}
	return Replaced(hostStateReplace(pointer(key), uint32(len(key)), pointer(old), oldLen, pointer(value), uint32(len(value))))
}

// StateDelete reports whether the key was there.
func StateDelete(key []byte) bool { return hostStateDelete(pointer(key), uint32(len(key))) == 1 }

// StateAdd adds to a value of 8 bytes, and returns the sum; an absent one is 0.
func StateAdd(key []byte, delta int64) int64 {
	return hostStateAdd(pointer(key), uint32(len(key)), delta)
}
