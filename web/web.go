// Package web embeds the charts of reports in the binary: the script and the style sheet that Vite builds from src
// ('make web').
package web

import (
	"embed"
	"strings"
)

// The pattern always matches the tracked file dist.md, and the directory dist once it is built. Building tare therefore
// never needs Node.
//
//go:embed dist*
var dist embed.FS

// Bundle returns the script and the style sheet of the charts, escaped for use inside <script> and <style>. ok is false
// if the binary was built without them.
func Bundle() (script, style string, ok bool) {
	s, err := dist.ReadFile("dist/report.js")
	if err != nil || len(s) == 0 {
		return "", "", false
	}
	css, _ := dist.ReadFile("dist/report.css") // Vite writes none when there is nothing in it
	return inline(string(s), "script"), inline(string(css), "style"), true
}

// inline escapes a text so that it cannot end the element in which it is embedded. In strings, the escaped characters
// mean the same to JavaScript and to CSS. A bundler leaves such text only in strings.
func inline(text, element string) string {
	return strings.NewReplacer("</"+element, `<\/`+element, "<!--", `<\!--`).Replace(text)
}
