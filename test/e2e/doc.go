// Package e2e tests the finished tare binary from the outside: what it prints, the code it exits with, and that it
// leaves nothing behind. The binary is built once for all tests; harness_test.go holds what they share.
package e2e
