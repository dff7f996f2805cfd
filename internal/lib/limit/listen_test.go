package limit

import (
	"net"
	"testing"

	"tare/internal/lib/fault"
)

func TestTCP(t *testing.T) {
	l, err := TCP(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for address, want := range map[string]struct {
		code fault.Code
		text string
	}{
		l.Addr().String(): {fault.Machine, l.Addr().String() + ": the port is in use: "},
		"192.0.2.1:0":     {fault.Machine, "192.0.2.1:0: this machine does not have that address: "},
		"nonsense":        {fault.Usage, "nonsense: cannot listen on this address: "},
		"127.0.0.1:99999": {fault.Usage, "127.0.0.1:99999: cannot listen on this address: "},
	} {
		l, err := TCP(t.Context(), address)
		if err == nil {
			l.Close()
			t.Errorf("it listens at %s", address)
			continue
		}
		if text := err.Error(); fault.CodeOf(err) != want.code || len(text) < len(want.text) ||
			text[:len(want.text)] != want.text ||
			fault.HintOf(err) == "" {
			t.Errorf("code %d, %v; want %d, %s", fault.CodeOf(err), err, want.code, want.text)
		}
	}
}
