// Command under executes a program under the filter of package faults. It sends the descriptor by which the program's
// calls are received over its descriptor 3, a socket:
//
//	under CALL PROGRAM [ARG...]
//
// CALL is the name of the only call that the filter hands over; if it is empty, the filter hands over all of its calls.
package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"tare/test/faults/filter"
)

func main() {
	runtime.LockOSThread() // the filter applies to this thread, which executes the program
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "under:", err)
		os.Exit(125)
	}
}

func run() error {
	const socket = 3
	path, args, env := os.Args[2], os.Args[2:], os.Environ()
	unix.CloseOnExec(socket)
	listener, err := filter.Install(os.Args[1])
	if err != nil {
		return err
	}
	// From here until the descriptor has arrived, no process answers the calls that the filter hands over, so make none.
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("sending the descriptor: %w", err)
	}
	unix.Close(listener)
	return fmt.Errorf("executing %s: %w", path, unix.Exec(path, args, env))
}
