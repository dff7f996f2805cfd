package text

import (
	"regexp"
	"sync"
)

// LazyRegexp returns a function that returns the regular expression. The first call compiles it, and panics if expr is
// invalid. The tare binary plays many roles, and an expression that a role never uses should not take up its memory: a
// bounded repetition of a few characters of text compiles to hundreds of kilobytes.
func LazyRegexp(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
