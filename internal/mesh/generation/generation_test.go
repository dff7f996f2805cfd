package generation

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// TestJudge: every possible endpoint is judged correctly, at the limits of all its bits.
func TestJudge(t *testing.T) {
	for _, begun := range []uint64{0, 1, 3, 1<<lowBits - 1, 1 << lowBits, 1<<lowBits + 1, 5<<lowBits + 12345, 1 << 40} {
		for _, behind := range []uint64{0, 1, 2, 100, 1<<lowBits - 1} {
			if behind > begun {
				continue
			}
			g := begun - behind
			for service := range Services {
				for i := range Size(g) {
					ip, port := Endpoint(service, g, i)
					if v, got := Judge(service, ip, port, g, begun); v != Right || got != g {
						t.Errorf("endpoint %d of generation %d, of %d: %v %d", i, g, begun, v, got)
					}
					if v, got := Judge(service, ip, port, g+1, begun); behind > 0 && (v != Stale || got != g) {
						t.Errorf("endpoint %d of generation %d, gone: %v %d", i, g, v, got)
					}
					if v, _ := Judge(1-service, ip, port, g, begun); v != Torn {
						t.Errorf("the other service's endpoint is %v", v)
					}
					if g > 0 {
						if v, _ := Judge(service, ip, port, 0, g-1); v != Torn {
							t.Errorf("an endpoint of generation %d, before it began, is %v", g, v)
						}
					}
				}
			}
		}
	}
	for service := range Services {
		ip, port := Service(service)
		if v, _ := Judge(service, ip, port, 7, 7); v != Missed {
			t.Errorf("the service itself is %v", v)
		}
		if v, _ := Judge(1-service, ip, port, 7, 7); v != Torn {
			t.Errorf("the other service itself is %v", v)
		}
	}
	const far = 1 << lowBits // an endpoint that old looks like the latest, except for its port
	if ip, port := Endpoint(0, 8, 0); true {
		if v, _ := Judge(0, ip, port, 0, 8+far); v != Torn {
			t.Errorf("what is too old to be told is %v", v)
		}
	}
	if ip, port := Endpoint(0, 4, Most-1); true { // generation 4 has one endpoint
		if v, _ := Judge(0, ip, port, 4, 4); v != Torn {
			t.Errorf("an endpoint beyond the size of its set is %v", v)
		}
	}
	if v, _ := Judge(0, 0, 0, 4, 4); v != Torn {
		t.Errorf("nothing is %v", v)
	}
}

// TestTorn: the address of one generation with the port of another, or of another endpoint, is accepted only by
// chance.
func TestTorn(t *testing.T) {
	taken := 0
	const n = 20000
	for g := uint64(1); g <= n; g++ {
		ip, port := Endpoint(0, g, 0)
		_, other := Endpoint(0, g-1, 0)
		if v, _ := Judge(0, ip, other, 0, g+2); v != Torn {
			taken++
		}
		before, _ := Endpoint(0, g-1, 0)
		if v, _ := Judge(0, before, port, 0, g+2); v != Torn {
			taken++
		}
		if _, sibling := Endpoint(0, g, 1); Size(g) > 1 && sibling != port {
			if v, _ := Judge(0, ip, sibling, 0, g+2); v != Torn {
				taken++
			}
		}
	}
	if taken > 5 { // of 55,000, each with a chance of 1 in 65,535
		t.Errorf("%d torn endpoints were taken for whole ones", taken)
	}
}

// TestAddresses: services and endpoints are distinct loopback addresses that a socket may connect to.
func TestAddresses(t *testing.T) {
	seen := map[string]bool{}
	for service := range Services {
		ip, port := Service(service)
		seen[AddrPort(ip, port).String()] = true
		for _, g := range []uint64{0, 1, 2, 3, 1<<lowBits - 1} {
			for i := range Size(g) {
				ip, port := Endpoint(service, g, i)
				a := AddrPort(ip, port)
				if seen[a.Addr().String()] || port == 0 || !a.Addr().IsLoopback() || a.Addr().As4()[1] < 128 ||
					ip == 127<<24|1<<24-1 {
					t.Errorf("endpoint %v", a)
				}
				seen[a.Addr().String()] = true
			}
		}
	}
}

// TestPage: the reader sees what the writer writes, cannot write, and keeps the page when its maker has ended.
func TestPage(t *testing.T) {
	if _, err := Open(os.Getpid()); fault.CodeOf(err) != fault.Usage || !errors.Is(err, os.ErrNotExist) ||
		fault.HintOf(err) == "" {
		t.Errorf("a process without a page: %v", err)
	}
	maker, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	reader, err := Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if reader.Begun() != 0 || reader.Done() != 0 || reader.BeganAt(0) == 0 {
		t.Errorf("at first: %d %d %d", reader.Begun(), reader.Done(), reader.BeganAt(0))
	}
	before := pace.Now()
	maker.Begin(1)
	after := pace.Now()
	if reader.Begun() != 1 || reader.Done() != 0 {
		t.Errorf("begun %d, done %d", reader.Begun(), reader.Done())
	}
	if at := reader.BeganAt(1); at < before || at > after {
		t.Errorf("generation 1 began at %d, not between %d and %d", at, before, after)
	}
	maker.End(1)
	if reader.Done() != 1 {
		t.Errorf("done %d", reader.Done())
	}
	if err := unix.Mprotect(reader.mem, unix.PROT_READ|unix.PROT_WRITE); !errors.Is(err, unix.EACCES) {
		t.Errorf("the reader may write: %v", err)
	}
	// For a generation that the page no longer holds, BeganAt returns a later time. It never returns a later time for an
	// earlier generation than for a later one.
	first := reader.BeganAt(1)
	for g := uint64(2); g <= Remembered+10; g++ {
		maker.Begin(g)
	}
	if at := reader.BeganAt(1); at <= first || at > reader.BeganAt(Remembered/2) {
		t.Errorf("generation 1, forgotten, began at %d; it was %d", at, first)
	}
	if at := reader.BeganAt(Remembered); at < reader.BeganAt(Remembered-1) || at > pace.Now() {
		t.Errorf("generation %d began at %d", Remembered, at)
	}
	if err := maker.Close(); err != nil {
		t.Error(err)
	}
	if reader.Begun() != Remembered+10 {
		t.Error("the page went with its maker")
	}
}

// TestForeignPage: a page of another size or layout is refused, not read.
func TestForeignPage(t *testing.T) {
	for name, size := range map[string]int64{"short": 4096, "blank": int64(pageSize)} {
		fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(os.Getpid()); fault.CodeOf(err) != fault.Usage || errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}
}
