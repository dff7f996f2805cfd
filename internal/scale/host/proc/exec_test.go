package proc

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// restarts is set for a process that executes itself again and again, each time from another thread than its first.
const restarts = "TARE_TEST_RESTARTS"

func init() {
	if os.Getenv(restarts) == "" {
		return
	}
	runtime.LockOSThread() // the first thread, for this is an init function
	go func() { panic(syscall.Exec("/proc/self/exe", os.Args, os.Environ())) }()
	select {}
}

// A process that executes a program from a thread of its own is alive all the while, although its first thread is
// dead for a moment.
func TestAliveWhileItExecutes(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), restarts+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	began, firstDead := uint64(0), 0
	for end := time.Now().Add(30 * time.Second); firstDead < 1000 && time.Now().Before(end); {
		p, err := FS{}.Process(cmd.Process.Pid)
		if err != nil || !p.Alive() || p.Threads == 0 || began != 0 && p.Start != began {
			t.Fatalf("%+v, %v; it began at %d", p, err, began)
		}
		began = p.Start
		if p.firstDead() {
			firstDead++
		}
	}
	if firstDead == 0 {
		t.Fatal("its first thread was never seen dead")
	}
}
