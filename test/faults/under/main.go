// Command under executes a program under the filter of package faults, and sends the descriptor by which its calls are
// received over the socket that it has as descriptor 3:
//
//	under CALL PROGRAM [ARG...]
//
// CALL is the name of the only call that is handed over; if it is empty, all of the filter's calls are.
package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"tare/test/faults/filter"
)

func main() {
	runtime.LockOSThread() // the filter is of this thread, which executes the program
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
	// From here on until the descriptor has arrived, nothing may be called that the filter hands over.
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("sending the descriptor: %w", err)
	}
	unix.Close(listener)
	return fmt.Errorf("executing %s: %w", path, unix.Exec(path, args, env))
}
