package privilege

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// asked is the environment variable that makes this test binary a process which gives up its privileges: all of them,
// or all but one, as its value says.
const (
	asked   = "TARE_TEST_DROP"
	all     = "all"
	allBut1 = "all but one"
	kept    = cap.SYS_PTRACE
)

// TestMain is also the process that gives up its privileges.
func TestMain(m *testing.M) {
	switch what := os.Getenv(asked); what {
	case "":
		os.Exit(m.Run())
	case again, unwatched:
		if err := stopOften(what); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	var threads sync.WaitGroup
	block := make(chan struct{})
	for range 8 { // these threads exist before privileges are given up
		threads.Go(func() { <-block })
	}
	give := Drop
	if os.Getenv(asked) == allBut1 {
		give = func() error { return Keep(kept) }
	}
	if err := give(); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	close(block)
	threads.Wait()
	tasks, _ := filepath.Glob("/proc/self/task/*/status")
	for _, path := range tasks {
		text, _ := os.ReadFile(path)
		fmt.Print(string(text))
	}
	// Root's user ID gives no program its capabilities back.
	cmd := exec.Command("cat", "/proc/self/status")
	cmd.Stdout = os.Stdout
	if err := cmd.Run(); err != nil {
		fmt.Println("error:", err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		fmt.Println("error:", err)
	}
	// Set the name that the host already has, in case this succeeds.
	if err := unix.Sethostname([]byte(unix.ByteSliceToString(name.Nodename[:]))); err != unix.EPERM {
		fmt.Println("error: it could still set the host's name:", err)
	}
	os.Exit(0)
}

var sets = regexp.MustCompile(`^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs):\s*(\S+)`)

func TestDrop(t *testing.T) { givesUp(t, all, 0) }

func TestKeep(t *testing.T) { givesUp(t, allBut1, 1<<kept) }

// givesUp starts a process that gives up privileges, and compares its remaining capabilities with a set.
func givesUp(t *testing.T, what string, left uint64) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: others have nothing to give up")
	}
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Env = append(os.Environ(), asked+"="+what)
	cmd.SysProcAttr = &syscall.SysProcAttr{AmbientCaps: []uintptr{uintptr(kept)}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	statuses := 0
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "error:") {
			t.Error(line)
		}
		m := sets.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		statuses++
		want := "0000000000000000"
		switch m[1] {
		case "NoNewPrivs":
			want = "1"
		case "CapPrm", "CapEff":
			want = fmt.Sprintf("%016x", left)
		}
		if m[2] != want {
			t.Errorf("%s, want %s", line, want)
		}
	}
	if statuses < 5*3 { // three lines each, for some threads and the program that was executed
		t.Errorf("only %d lines about privileges:\n%s", statuses, out)
	}
}
