package terminal

import (
	"strings"
	"testing"
)

// Evil is a name that would clear the screen, set the title, go back to the beginning of the line, turn the direction
// of text, and clear the screen by C1 control characters too.
const Evil = "a\x1b[2J\x1b]0;title\x07\r\u009b31m\u202eb\x9b2J"

// IsSafe fails the test if text contains characters that could control a terminal. It ignores own, the sequences with
// which the program itself controls the terminal. The message begins with name.
func IsSafe(t *testing.T, name, text string, own ...string) {
	t.Helper()
	for _, control := range own {
		text = strings.ReplaceAll(text, control, "")
	}
	if at := strings.IndexFunc(text, func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0xfffd
	}); at >= 0 {
		t.Errorf("%s: %q", name, text[max(at-20, 0):min(at+20, len(text))])
	}
}
