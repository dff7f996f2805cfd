// Package web carries the report's charts into the binary: the script and the style sheet that Vite makes of src (see
// 'make web').
package web

import (
	"embed"
	"strings"
)

// The pattern matches the tracked note dist.md always and the directory dist once it is built, so building tare never
// needs Node.
//
//go:embed dist*
var dist embed.FS

// Bundle is the script and the style sheet of the charts, ready to stand inside <script> and <style>; ok is false where
// the binary was built without them.
func Bundle() (script, style string, ok bool) {
	s, err := dist.ReadFile("dist/report.js")
	if err != nil || len(s) == 0 {
		return "", "", false
	}
	css, _ := dist.ReadFile("dist/report.css") // Vite writes none when there is nothing in it
	return inline(string(s), "script"), inline(string(css), "style"), true
}

// inline keeps text from ending the element that it stands in. Both escapes mean the same to JavaScript and to CSS,
// inside strings, the only place where a bundler leaves such text.
func inline(text, element string) string {
	return strings.NewReplacer("</"+element, `<\/`+element, "<!--", `<\!--`).Replace(text)
}
