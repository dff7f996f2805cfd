package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEveryCommandHasARow: the table of what commands need, in docs/security.md, has each command. Tests in test/e2e
// run the commands to check that the rows are true.
func TestEveryCommandHasARow(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile(`(?s)\n## Which command needs what\n(.*?)\n## `).FindSubmatch(page)
	if section == nil {
		t.Fatal("docs/security.md has no section on what commands need")
	}
	root := Command()
	described := map[*cobra.Command]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`tare .*?) \\|").FindAllSubmatch(section[1], -1) {
		var before []string // the last whole command of the row; a name after it may leave out the words that both begin with
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(row[1]), -1) {
			words := strings.Fields(name[1])
			if words[0] != root.Name() {
				for n := len(before) - 1; n > 0; n-- {
					if c, left := descend(root, append(before[1:n:n], words...)); left == 0 {
						described[c] = true
						break
					}
				}
				continue
			}
			c, _ := descend(root, words[1:])
			described[c] = true
			before = words
		}
	}
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if !sub.Hidden && sub.Name() != "help" {
				look(sub)
			}
		}
		if !c.HasSubCommands() && !described[c] && !described[c.Parent()] {
			t.Errorf("docs/security.md does not say what %s needs: give it a row, and the row a test in "+
				"test/e2e/privileges_table_test.go", c.CommandPath())
		}
	}
	look(root)
}

// descend follows words to a command as far as they name subcommands, and counts the words that are left.
func descend(c *cobra.Command, words []string) (_ *cobra.Command, left int) {
next:
	for i, w := range words {
		for _, sub := range c.Commands() {
			if sub.Name() == w {
				c = sub
				continue next
			}
		}
		return c, len(words) - i
	}
	return c, 0
}
