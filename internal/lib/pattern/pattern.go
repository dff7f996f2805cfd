// Package pattern has regular expressions that are compiled when they are first used. The binary plays many roles, and
// what a role never matches would otherwise stand in the memory of every process of it, those among them that are
// weighed: a bounded repetition of a few characters of text compiles to hundreds of kilobytes.
package pattern

import (
	"regexp"
	"sync"
)

// Lazy gives the regular expression, which is compiled at the first call. One that does not compile is a defect, and
// panics then.
func Lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
