// Package browser opens reports in a headless Chromium, by chromedp, for the tests of the report's page: it opens a
// file, moves the pointer, presses keys, and returns what the page logged and fetched.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"tare/web"
)

// flags keep Chromium from using the network for itself. The sandbox is off because tests run as root.
var flags = []string{
	"headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking",
	"disable-component-update", "disable-sync", "disable-default-apps", "disable-extensions", "hide-scrollbars",
	"mute-audio", "disable-dev-shm-usage",
}

// hung is how long one step may take before the browser counts as hung. No test depends on it otherwise.
const hung = 2 * time.Minute

// Chromium is one running browser, which the tests of a package share.
type Chromium struct {
	ctx context.Context
}

// Browser is one page, which is closed at the end of its test.
type Browser struct {
	t   *testing.T
	ctx context.Context

	mu               sync.Mutex
	errors, requests []string
}

// path returns the path of this machine's Chromium, or "" if it has none.
func path() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	return ""
}

// NeedCharts skips the test if reports have no charts because Node, which builds them, is missing. If Node is there and
// the charts are missing, the test fails.
func NeedCharts(t *testing.T) {
	t.Helper()
	if _, _, ok := web.Bundle(); ok {
		return
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("needs Node: the charts of the report are built with it")
	}
	t.Fatal("this machine has Node and the charts are not built: run make web")
}

// Start starts Chromium. It returns nil if this machine has none.
func Start() (*Chromium, error) {
	path := path()
	if path == "" {
		return nil, nil
	}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.Flag("force-color-profile", "srgb")}
	for _, name := range flags {
		options = append(options, chromedp.Flag(name, true))
	}
	ctx, _ := chromedp.NewExecAllocator(context.Background(), options...) // Stop ends both the context and the browser
	ctx, _ = chromedp.NewContext(ctx)
	if err := chromedp.Do(ctx); err != nil { // starts the browser
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	return &Chromium{ctx}, nil
}

// Stop ends the browser with all its processes and removes its profile.
func (c *Chromium) Stop() error {
	return chromedp.Cancel(c.ctx)
}

// Page opens an empty page of the given size. It skips the test if c is nil.
func (c *Chromium) Page(t *testing.T, width, height int) *Browser {
	t.Helper()
	if c == nil {
		t.Skip("needs chromium (Debian package chromium)")
	}
	ctx, cancel := chromedp.NewContext(c.ctx)
	t.Cleanup(cancel)
	b := &Browser{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.event); err != nil { // opens the page
		t.Fatalf("opening a page: %v", err)
	}
	b.Resize(width, height, false)
	return b
}

// For makes t, for example a subtest, the test that fails if a later step on the page fails.
func (b *Browser) For(t *testing.T) { b.t = t }

// event records what the page logs and requests.
func (b *Browser) event(e any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := e.(type) {
	case *runtime.EventExceptionThrown, *log.EventEntryAdded:
		b.errors = append(b.errors, text(e))
	case *runtime.EventConsoleAPICalled:
		switch e.Type {
		case runtime.ConsoleAPICalledTypeError, runtime.ConsoleAPICalledTypeWarning, runtime.ConsoleAPICalledTypeAssert:
			b.errors = append(b.errors, text(e))
		}
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

// text returns the whole content of an event as text.
func text(e any) string {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Sprintf("%+v (%v)", e, err)
	}
	return string(data)
}

// run takes a step on a page, and fails the page's test if the step fails.
func run[T any](b *Browser, what string, step chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, hung)
	defer cancel()
	v, err := chromedp.Run(ctx, step)
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	return v
}

// Resize changes the size of the page. If mobile is set, the page behaves as on a telephone.
func (b *Browser) Resize(width, height int, mobile bool) {
	b.t.Helper()
	size := emulation.SetDeviceMetricsOverrideParams{
		Width: int64(width), Height: int64(height), DeviceScaleFactor: 1, Mobile: mobile,
	}
	run(b, "setting the size of the page", func(ctx context.Context, _ *chromedp.Target) (chromedp.Void, error) {
		return chromedp.Call(ctx, emulation.SetDeviceMetricsOverride, size)
	})
}

// Open opens a file and waits until it is loaded and drawn.
func (b *Browser) Open(path string) {
	b.t.Helper()
	run(b, "opening "+path, chromedp.Navigate("file://"+path))
	b.Frame()
}

// Frame waits until everything requested so far is on the screen.
func (b *Browser) Frame() {
	b.t.Helper()
	b.Eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))", nil)
}

// Eval evaluates an expression in the page, waits if it is a promise, and stores its value in result, unless result is
// nil.
func (b *Browser) Eval(expression string, result any) {
	b.t.Helper()
	value := run(b, expression, chromedp.Evaluate[[]byte](expression, chromedp.EvalAwaitPromise))
	if result == nil {
		return
	}
	if err := json.Unmarshal(value, result); err != nil {
		b.t.Fatalf("%s gives %s: %v", expression, value, err)
	}
}

// Press presses and releases a key: one of the constants of chromedp's package kb, such as kb.Tab.
func (b *Browser) Press(key string) {
	b.t.Helper()
	run(b, fmt.Sprintf("pressing %q", key), chromedp.KeyEvent(key))
	b.Frame()
}

// Move moves the pointer.
func (b *Browser) Move(x, y float64) {
	b.t.Helper()
	run(b, "moving the pointer", chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x, y))
	b.Frame()
}

// Media sets the medium that the page is shown on ("screen" or "print"), and its colour scheme ("light" or "dark").
func (b *Browser) Media(medium, scheme string) {
	b.t.Helper()
	media := emulation.SetEmulatedMediaParams{
		Media: medium, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}
	run(b, "setting the medium", func(ctx context.Context, _ *chromedp.Target) (chromedp.Void, error) {
		return chromedp.Call(ctx, emulation.SetEmulatedMedia, media)
	})
	b.Frame()
}

// Screenshot returns the whole page as a PNG.
func (b *Browser) Screenshot() []byte {
	b.t.Helper()
	return run(b, "taking a screenshot", chromedp.FullScreenshot(100))
}

// PDF prints the page to a PDF.
func (b *Browser) PDF() []byte {
	b.t.Helper()
	return run(b, "printing", chromedp.PrintToPDF(chromedp.PDFPreferCSSPageSize(), chromedp.PDFPaper(chromedp.PaperA4)))
}

// Said returns the errors that the page has logged and the addresses that it has requested so far.
func (b *Browser) Said() (errors, requests []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.errors), slices.Clone(b.requests)
}
