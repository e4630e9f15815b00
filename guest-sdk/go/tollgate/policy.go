// Package tollgate is the library for policies in Go: implement Policy, register it, and build with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o p.wasm .
//	go run ./tollgate/manifest manifest.json p.wasm
//
// A policy:
//
//	type rooms struct{ tollgate.Base }
//
//	func (rooms) Request(call *tollgate.Call, answer *tollgate.Answer) {
//		if rooms, ok := call.Uint(0); !ok || rooms > 9 {
//			answer.Deny(tollgate.PermissionDenied, "too many rooms")
//		}
//	}
//
//	func init() {
//		tollgate.Register(func(config []byte) (tollgate.Policy, error) { return rooms{}, nil })
//	}
//
//	func main() {}
//
// The manifest is a file beside it, and declares "wasi": true, because Go's run-time library
// imports WASI. The host answers these imports with errors: there are no files, no arguments, no
// environment.
//
// A call that isn't denied passes. Fields are numbered as the manifest lists them, from 0, and
// metadata keys behind them. A getter answers false if the field is absent or withheld by the
// operator: decide what that means.
//
// The garbage collector runs within a call and takes more than the default budget of one. This
// package allocates nothing during an evaluation; a policy that does the same never collects. See
// Bytes and Text of Call.
//
// A panic is a line in the policy's log and ends the instance, which denies the call.
// `guest-sdk/ABI.md` has the bytes.
package tollgate

// Policy evaluates calls. Embed Base for the hooks that the manifest doesn't name.
type Policy interface {
	Request(call *Call, answer *Answer)
	Reply(call *Call, answer *Answer)
	Tick()
	// Save hands over the state, for a manifest with "state". The bytes stay as they are until the
	// next call.
	Save() []byte
	// Restore reports whether the policy can go on from this state. The bytes are the policy's.
	Restore(version uint32, state []byte) bool
}

// Base has every hook, and denies: a hook that the manifest names and the policy forgot lets
// nothing pass.
type Base struct{}

func (Base) Request(_ *Call, answer *Answer) { answer.Deny(Internal, "the policy has no Request") }
func (Base) Reply(_ *Call, answer *Answer)   { answer.Deny(Internal, "the policy has no Reply") }
func (Base) Tick()                           {}
func (Base) Save() []byte                    { return nil }
func (Base) Restore(_ uint32, _ []byte) bool { return false }

// Status is a gRPC status code: any from 1 to 16.
type Status uint32

const (
	InvalidArgument    Status = 3
	NotFound           Status = 5
	PermissionDenied   Status = 7
	ResourceExhausted  Status = 8
	FailedPrecondition Status = 9
	Internal           Status = 13
	Unavailable        Status = 14
	Unauthenticated    Status = 16
)

// Register says how a policy is made from its configuration; call it in init. An error refuses the
// configuration with its text. The bytes are the policy's.
func Register(configure func(config []byte) (Policy, error)) { register = configure }

var register func(config []byte) (Policy, error)
