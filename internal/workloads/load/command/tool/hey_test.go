package tool

import (
	"os"
	"strings"
	"testing"
)

func TestStatusLineUnknown(t *testing.T) {
	whole, err := os.ReadFile("testdata/hey-0.1.5-status.txt")
	if err != nil {
		t.Fatal(err)
	}
	var r Reading
	if err := parseHey(string(whole), &r); err != nil {
		t.Fatal(err)
	}
	r = Reading{}
	err = parseHey(strings.Replace(string(whole), "  [5", "  (5", 1), &r)
	if err == nil || !strings.Contains(err.Error(), "status code distribution") {
		t.Errorf("a status that cannot be read: %v", err)
	}
}
