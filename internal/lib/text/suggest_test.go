package text

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	known := []string{"address", "protocol", "endpoints", "keepalive", "rate"}
	for name, want := range map[string]string{
		"adress": "address", "Address": "address", "endpoint": "endpoints", "porotcol": "protocol", "keep-alive": "keepalive",
		"raet": "rate",
		"":     "", "x": "", "version": "", strings.Repeat("a", 1<<20): "",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%.20q: got %q, want %q", name, got, want)
		}
	}
}
