// Package browser drives a real Chromium without a window, for the tests of the report: it opens a page from a file,
// moves the pointer, presses keys, and says what the page logged and fetched. It speaks the DevTools protocol over the
// two pipes that --remote-debugging-pipe asks for, so neither a driver nor a package of Node is needed.
package browser

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"tare/web"
)

// flags keep Chromium to the page: it asks nothing of the network for itself.
var flags = []string{
	"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
	"--disable-sync", "--disable-default-apps", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe", "--mute-audio",
	"--disable-dev-shm-usage", "--force-color-profile=srgb",
}

// patience is how long one command may take before the browser counts as hung; nothing passes or fails by it otherwise.
const patience = 2 * time.Minute

// Chromium is one running browser, for all tests of a package.
type Chromium struct {
	cmd     *exec.Cmd
	to      *os.File
	from    *os.File
	profile string
	read    chan struct{} // closed when nothing more comes

	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	pages   map[string]*Browser // by session
}

// Browser is one page, which ends with its test.
type Browser struct {
	t       *testing.T
	c       *Chromium
	session string
	loaded  chan struct{}

	errors, requests []string // guarded by the mutex of Chromium
}

type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// Path finds Chromium; empty where there is none.
func Path() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	return ""
}

// NeedCharts skips a test where reports have no charts for want of Node, with which they are built. Where there is Node
// they must be built.
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

// Start starts Chromium; nil where there is none.
func Start() (*Chromium, error) {
	path := Path()
	if path == "" {
		return nil, nil
	}
	profile, err := os.MkdirTemp("", "tare-test-browser-")
	if err != nil {
		return nil, err
	}
	// Chromium reads commands from descriptor 3 and writes to 4; each message ends in a zero byte.
	commands, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	from, answers, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c := &Chromium{to: to, from: from, profile: profile, read: make(chan struct{}), waiting: map[int]chan reply{}, pages: map[string]*Browser{}}
	c.cmd = exec.Command(path, append(flags, "--user-data-dir="+profile, "about:blank")...)
	c.cmd.ExtraFiles = []*os.File{commands, answers}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children are of its group, and end with it
	err = c.cmd.Start()
	commands.Close()
	answers.Close()
	if err != nil {
		return nil, errors.Join(err, to.Close(), from.Close(), os.RemoveAll(profile))
	}
	go c.receive()
	return c, nil
}

// Stop ends the browser with all its processes and removes its profile.
func (c *Chromium) Stop() error {
	c.to.Close()
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	_ = c.cmd.Wait() // it was killed
	c.from.Close()
	<-c.read
	var err error
	for range 40 { // the last of its children may still be writing there
		if err = os.RemoveAll(c.profile); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// Page opens an empty page of the given size.
func (c *Chromium) Page(t *testing.T, width, height int) *Browser {
	t.Helper()
	if c == nil {
		t.Skip("needs chromium (Debian package chromium)")
	}
	b := &Browser{t: t, c: c, loaded: make(chan struct{}, 16)}
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	c.mu.Lock()
	c.pages[attached.SessionID] = b
	c.mu.Unlock()
	b.session = attached.SessionID
	t.Cleanup(func() {
		b.session = ""
		b.call("Target.closeTarget", map[string]any{"targetId": target.TargetID}, nil)
	})
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.Do(domain+".enable", nil, nil)
	}
	b.Do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	return b
}

// receive takes messages until the browser is gone.
func (c *Chromium) receive() {
	defer close(c.read)
	r := bufio.NewReaderSize(c.from, 1<<20)
	for {
		data, err := r.ReadBytes(0)
		if err != nil {
			break
		}
		var m struct {
			ID        int             `json:"id"`
			Method    string          `json:"method"`
			SessionID string          `json:"sessionId"`
			Params    json.RawMessage `json:"params"`
			Result    json.RawMessage `json:"result"`
			Error     *struct{ Message string }
		}
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		c.mu.Lock()
		if answer := c.waiting[m.ID]; m.ID != 0 && answer != nil {
			delete(c.waiting, m.ID)
			answer <- reply{m.Result, m.Error}
		} else if b := c.pages[m.SessionID]; b != nil {
			b.event(m.Method, m.Params)
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, answer := range c.waiting {
		delete(c.waiting, id)
		answer <- reply{Error: &struct{ Message string }{"the browser ended"}}
	}
}

func (b *Browser) event(method string, params json.RawMessage) {
	switch method {
	case "Page.loadEventFired":
		select {
		case b.loaded <- struct{}{}:
		default:
		}
	case "Runtime.exceptionThrown", "Log.entryAdded":
		b.errors = append(b.errors, string(params))
	case "Runtime.consoleAPICalled":
		var p struct{ Type string }
		if json.Unmarshal(params, &p) == nil && (p.Type == "error" || p.Type == "warning" || p.Type == "assert") {
			b.errors = append(b.errors, string(params))
		}
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		if json.Unmarshal(params, &p) == nil {
			b.requests = append(b.requests, p.Request.URL)
		}
	}
}

// call sends one command, to the page where there is a session, else to the browser.
func (b *Browser) call(method string, params any, result any) {
	b.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	answer := make(chan reply, 1)
	c := b.c
	c.mu.Lock()
	c.next++
	id := c.next
	c.waiting[id] = answer
	c.mu.Unlock()
	m := map[string]any{"id": id, "method": method, "params": params}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	data, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := c.to.Write(append(data, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	select {
	case r := <-answer:
		if r.Error != nil {
			b.t.Fatalf("%s: %s", method, r.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(r.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-time.After(patience):
		b.t.Fatalf("%s: no answer in %s", method, patience)
	}
}

// Do sends one command of the DevTools protocol to the page.
func (b *Browser) Do(method string, params any, result any) {
	b.t.Helper()
	b.call(method, params, result)
}

// Open opens a file and waits until it is loaded and drawn.
func (b *Browser) Open(path string) {
	b.t.Helper()
	b.Do("Page.navigate", map[string]any{"url": "file://" + path}, nil)
	select {
	case <-b.loaded:
	case <-time.After(patience):
		b.t.Fatalf("%s did not load in %s", path, patience)
	}
	b.Frame()
}

// Frame waits until what was asked for so far is on the screen.
func (b *Browser) Frame() {
	b.t.Helper()
	b.Eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))", nil)
}

// Eval evaluates an expression in the page; a promise is waited for.
func (b *Browser) Eval(expression string, result any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.Do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	if result != nil {
		if err := json.Unmarshal(r.Result.Value, result); err != nil {
			b.t.Fatalf("%s gives %s: %v", expression, r.Result.Value, err)
		}
	}
}

// Press presses and releases a key that has no character, such as Tab.
func (b *Browser) Press(key string, code int) {
	b.t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		b.Do("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}, nil)
	}
	b.Frame()
}

// Move moves the pointer.
func (b *Browser) Move(x, y float64) {
	b.t.Helper()
	b.Do("Input.dispatchMouseEvent", map[string]any{"type": "mouseMoved", "x": x, "y": y}, nil)
	b.Frame()
}

// Media sets what the page believes of its reader: the medium, and light or dark.
func (b *Browser) Media(medium, scheme string) {
	b.t.Helper()
	b.Do("Emulation.setEmulatedMedia", map[string]any{"media": medium, "features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.Frame()
}

// Screenshot is the whole page as a PNG.
func (b *Browser) Screenshot() []byte {
	b.t.Helper()
	var r struct{ Data string }
	b.Do("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &r)
	return b.decode(r.Data)
}

// PDF prints the page.
func (b *Browser) PDF() []byte {
	b.t.Helper()
	var r struct{ Data string }
	b.Do("Page.printToPDF", map[string]any{"printBackground": false, "preferCSSPageSize": true, "paperWidth": 8.27, "paperHeight": 11.69}, &r)
	return b.decode(r.Data)
}

func (b *Browser) decode(data string) []byte {
	b.t.Helper()
	out, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// Said is what the page logged as errors and which addresses it asked for, so far.
func (b *Browser) Said() (errors, requests []string) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return slices.Clone(b.errors), slices.Clone(b.requests)
}
