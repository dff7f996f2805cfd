// Command connect makes TCP connections to a loopback address on a fixed schedule, and prints how many it made. It ends
// after a given time, or at the first connection that fails. Each connection is reset as soon as it is established,
// which leaves nothing behind in the kernel. Only tests use it.
package main

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	to := flag.String("to", "", "IPv4 address:port on the loopback that accepts connections")
	rate := flag.Float64("rate", 1000, "connections per second")
	duration := flag.Duration("for", time.Second, "how long to make connections")
	cgroup := flag.String("cgroup", "", "cgroup v2 directory to enter first")
	flag.Parse()
	made, late, err := run(*to, *rate, *duration, *cgroup)
	fmt.Printf("%d\n", made)
	if late > 0 {
		fmt.Fprintf(os.Stderr, "connect: %d connections were more than 10 ms late\n", late)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "connect: %v\n", err)
		os.Exit(1)
	}
}

func run(to string, rate float64, duration time.Duration, cgroup string) (made, late int, err error) {
	address, err := netip.ParseAddrPort(to)
	if err != nil || !address.Addr().Is4() || !address.Addr().IsLoopback() {
		return 0, 0, fmt.Errorf("-to %q is not an IPv4 loopback address and port", to)
	}
	if rate <= 0 || rate > 100_000 {
		return 0, 0, fmt.Errorf("-rate %g is out of range (above 0, to 100000)", rate)
	}
	if cgroup != "" {
		if err := os.WriteFile(cgroup+"/cgroup.procs", []byte("0"), 0); err != nil {
			return 0, 0, fmt.Errorf("entering the cgroup: %w", err)
		}
	}
	sa := &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}
	start := time.Now()
	for n := 0; ; n++ {
		due := time.Duration(float64(n) / rate * float64(time.Second))
		if due >= duration {
			return made, late, nil
		}
		wait := due - time.Since(start)
		time.Sleep(wait)
		if wait < -10*time.Millisecond {
			late++
		}
		if err := connect(sa); err != nil {
			return made, late, fmt.Errorf("connection %d to %s: %w", n, to, err)
		}
		made++
	}
}

// connect makes one connection and resets it. It makes exactly one connect() call, even if a signal interrupts it: the
// kernel then completes the connection by itself.
func connect(sa unix.Sockaddr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	if err := unix.Connect(fd, sa); err != nil && err != unix.EINTR {
		return err
	}
	return nil
}
