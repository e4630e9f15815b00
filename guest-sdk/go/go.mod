// The SDK for policies in Go. Projects of `tollgate policy new --lang go` have a copy of the directory tollgate.
module tollgate-policy

go 1.24
