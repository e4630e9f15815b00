package tollgate

import (
	"bytes"
	"encoding/binary"
	"unsafe"
)

// What the host calls.

const entryBytes = 32

// The host's buffer, aligned to 8, and what it is made of.
var (
	words  []uint64
	buffer []byte
	policy Policy
	saved  []byte
)

// Evaluations use these again, so that none of them allocates.
var (
	call   Call
	answer Answer
)

//go:wasmexport tollgate_abi_v1
func exportAbi() {}

//go:wasmexport tollgate_buffer
func exportBuffer(minLen uint32) uint32 {
	words = make([]uint64, max(1, (uint64(minLen)+7)/8))
	buffer = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
	return address(buffer)
}

//go:wasmexport tollgate_configure
func exportConfigure(length uint32) uint32 {
	defer failed()
	if register == nil {
		return refuse("the module registers no policy: call tollgate.Register in init")
	}
	made, err := register(bytes.Clone(buffer[:length]))
	if err != nil {
		return refuse(err.Error())
	}
	policy = made
	return 0
}

func refuse(sentence string) uint32 {
	if sentence == "" {
		sentence = "no reason given"
	}
	return uint32(copy(buffer, sentence))
}

//go:wasmexport tollgate_request
func exportRequest(count uint32) uint32 { return evaluate(count, Policy.Request) }

//go:wasmexport tollgate_reply
func exportReply(count uint32) uint32 { return evaluate(count, Policy.Reply) }

func evaluate(count uint32, hook func(Policy, *Call, *Answer)) uint32 {
	defer failed()
	arena.reset()
	for index := range int(count) {
		entry := buffer[entryBytes*index:][:entryBytes]
		view := buffer[binary.LittleEndian.Uint32(entry):][:binary.LittleEndian.Uint32(entry[4:])]
		call = Call{binary.LittleEndian.Uint32(entry[8:]), view}
		answer = Answer{verdict: verdictAllow}
		hook(policy, &call, &answer)
		binary.LittleEndian.PutUint32(entry[12:], answer.verdict)
		binary.LittleEndian.PutUint32(entry[16:], uint32(answer.status))
		binary.LittleEndian.PutUint32(entry[20:], address(answer.bytes))
		binary.LittleEndian.PutUint32(entry[24:], uint32(len(answer.bytes)))
	}
	return 0
}

//go:wasmexport tollgate_tick
func exportTick() uint32 {
	defer failed()
	policy.Tick()
	return 0
}

//go:wasmexport tollgate_save
func exportSave() uint64 {
	defer failed()
	saved = policy.Save()
	return uint64(address(saved)) | uint64(len(saved))<<32
}

//go:wasmexport tollgate_restore
func exportRestore(version, length uint32) uint32 {
	defer failed()
	if policy.Restore(version, bytes.Clone(buffer[:length])) {
		return 0
	}
	return 1
}

// A panic is one line in the policy's log. Go's own report would be many.
func failed() {
	reason := recover()
	if reason == nil {
		return
	}
	text := "panic"
	switch reason := reason.(type) {
	case error:
		text = "panic: " + reason.Error()
	case string:
		text = "panic: " + reason
	}
	Log(Error, text)
	exit(2)
}
