package profile

import (
	"math/big"
	"regexp"
	"strings"
)

// Patterns of what differs between builds of the same function or library.
var (
	// clone matches what compilers append to the symbols of copies and parts of a function: .constprop.0 by GCC,
	// .llvm.123 by Clang. A function of Go may itself have the name cold: symbols with a path or a receiver do not match,
	// and stable does not apply clone to those of package main.
	clone = regexp.MustCompile(`^(_[ZR].*?|[\w$]+)` +
		`(?:\.cold|\.warm|\.localalias|\.(?:isra|constprop|part|cold|clone|lto_priv|llvm|__uniq)\.[0-9]+)+$`)

	// rustHash matches the hash at the end of a symbol of Rust in the legacy mangling.
	rustHash = regexp.MustCompile(`^(_ZN.*)17h[0-9a-f]{16}E$`)

	// rustCrate matches the parts of a symbol of Rust in the v0 mangling that depend on the hashes of crates: the hash
	// before the name of a crate, and a back reference, which is a position in the symbol.
	rustCrate = regexp.MustCompile(`C(s[0-9A-Za-z]{9,11}_)[0-9u]|B([0-9A-Za-z]{0,2})_`)

	// cgoHash matches the hash of a package in the symbols that cgo makes (cPrefix in cmd/cgo/main.go).
	cgoHash = regexp.MustCompile(`^_cgo(exp)?_[0-9a-f]{12}_`)

	// fileVersion matches a version or a hash in the name of a library: libc-2.31.so, libpython3.11.so.1.0, and
	// libstd-6108105cd7e839cf.so.
	fileVersion = regexp.MustCompile(`(?:[-_]?[0-9]+(?:\.[0-9]+)+|-[0-9a-f]{8}|-[0-9a-f]{16})\.so$`)
)

// stable returns a symbol without what differs between builds of the same function, so that two versions of a program
// can be compared.
func stable(symbol string) string {
	if !strings.HasPrefix(symbol, "main.") {
		symbol = clone.ReplaceAllString(symbol, "$1")
	}
	if path, rust := strings.CutPrefix(symbol, "_R"); rust {
		return "_R" + withoutCrateHashes(path)
	}
	return cgoHash.ReplaceAllString(rustHash.ReplaceAllString(symbol, "${1}E"), "_cgo${1}_")
}

// withoutCrateHashes removes the hashes of crates from the path in a symbol of Rust's v0 mangling, and corrects the
// positions in back references (https://doc.rust-lang.org/rustc/symbol-mangling/v0.html).
func withoutCrateHashes(path string) string {
	var b strings.Builder
	type cut struct{ end, bytes int }
	var cuts []cut // in the order of path
	done := 0
	replace := func(from, to int, with string) {
		b.WriteString(path[done:from] + with)
		done, cuts = to, append(cuts, cut{to, to - from - len(with)})
	}
	for _, m := range rustCrate.FindAllStringSubmatchIndex(path, -1) {
		if m[2] >= 0 {
			replace(m[2], m[3], "")
			continue
		}
		was := position(path[m[4]:m[5]])
		is := was
		for _, c := range cuts {
			if c.end <= was {
				is -= c.bytes
			}
		}
		replace(m[4], m[5], digits(is))
	}
	return b.String() + path[done:]
}

// position and digits convert from and to a number in a v0 symbol, which has the base 62 and the digits of
// big.Int.Text: "" is 0, and "0" is 1.
func position(digits string) int {
	n, ok := new(big.Int).SetString(digits, 62)
	if !ok {
		return 0
	}
	return int(n.Int64()) + 1
}

func digits(position int) string {
	if position == 0 {
		return ""
	}
	return big.NewInt(int64(position - 1)).Text(62)
}

// unversioned returns the name of a library without its version, and without what the kernel appends if the file was
// deleted, so that functions of two versions are compared.
func unversioned(file string) string {
	file = strings.TrimSuffix(file, " (deleted)")
	if i := strings.Index(file, ".so."); i >= 0 {
		file = file[:i+len(".so")]
	}
	return fileVersion.ReplaceAllString(file, ".so")
}
