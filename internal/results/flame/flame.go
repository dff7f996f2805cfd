// Package flame draws the profiles of a run: one flame graph for each arm at each level, coloured by the difference
// from the baseline. Start reading at Page.
package flame

import (
	"bytes"
	"cmp"
	_ "embed" // the page
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"

	pprof "github.com/google/pprof/profile"

	"tare/internal/lib/quantity"
	"tare/internal/scale/profile"
)

// Graph holds what one flame graph shows: the profiles of some trials of an arm.
type Graph struct {
	Title string
	Unit  string // of CPU time: "seconds per request"
	Base  *Graph // the baseline's graph in the same unit; nil if there is none, or if this is the baseline's

	trials  int
	root    node    // in seconds
	divisor float64 // dividing seconds by it gives values in the unit
}

// part is the label of a sample that names the part of the trial to which the sample belongs.
const part = "part"

// The size of a graph, in the units of its picture.
const (
	width     = 1200
	rowHeight = 17
	maxDepth  = 80
	minWidth  = 0.6 // narrower boxes are not drawn
	charWidth = 6.6 // width of a letter
)

// node is a function at one place in the call tree, with the functions that it called there.
type node struct {
	value    float64 // CPU time
	children map[function]*node
}

// function identifies a function among those called at one place: a function of user code and one of the kernel, such
// as read, may have the same name.
type function struct {
	name string
	kind profile.Kind
}

func (n *node) child(f function) *node {
	c := n.children[f]
	if c == nil {
		c = &node{}
		if n.children == nil {
			n.children = map[function]*node{}
		}
		n.children[f] = c
	}
	return c
}

// Add adds the profile of a trial, whose CPU seconds divided by divisor are in the graph's unit. It counts only samples
// that name a part of the trial and whose time is in the CPU time of their control group.
func (g *Graph) Add(p *pprof.Profile, divisor float64) {
	g.trials, g.divisor = g.trials+1, g.divisor+divisor
	for _, s := range p.Sample {
		of := s.Label[part]
		if len(of) == 0 || len(s.Value) < 2 || s.Label[profile.LabelContext] != nil {
			continue
		}
		v := float64(s.Value[1]) / 1e9
		at := g.root.child(function{name: of[0]})
		g.root.value, at.value = g.root.value+v, at.value+v
		for i := len(s.Location) - 1; i >= max(0, len(s.Location)-maxDepth); i-- {
			name, kind := profile.Frame(s.Location[i])
			at = at.child(function{name, kind})
			at.value += v
		}
	}
}

// picture is a graph as the page draws it.
type picture struct {
	Title  string
	Total  string
	Height int
	Boxes  []box
}

type box struct {
	X, Width, TextX string
	Y, TextY        int
	Label           string // as much of the name as fits
	Colour          string
	Says            string
}

// draw lays out the boxes of the graph.
func (g *Graph) draw() picture {
	root := &g.root
	_, per, _ := strings.Cut(g.Unit, quantity.Seconds)
	total := quantity.Value(root.value/g.divisor, g.Unit) + per
	p := picture{Title: g.Title, Total: total + ", " + quantity.Counted(g.trials, "trial")}
	deepest := 0
	var add func(n, was *node, f function, x float64, depth int)
	add = func(n, was *node, f function, x float64, depth int) {
		w := n.value / root.value * width
		if !(w >= minWidth) {
			return
		}
		deepest = max(deepest, depth)
		b := box{
			X: fmt.Sprintf("%.1f", x), Width: fmt.Sprintf("%.1f", w-0.4), Y: depth * rowHeight,
			TextX: fmt.Sprintf("%.1f", x+2), TextY: depth*rowHeight + rowHeight - 5, Colour: neutral[f.kind],
			Says: fmt.Sprintf("%s: %s, %s", f.name, quantity.Value(n.value/g.divisor, g.Unit),
				quantity.Value(n.value/root.value, quantity.Part)),
		}
		if letters := int((w - 4) / charWidth); letters >= 3 {
			b.Label = shortened(f.name, letters)
		}
		if g.Base != nil {
			d := n.value / g.divisor
			if was != nil {
				d -= was.value / g.Base.divisor
			}
			b.Colour = colour(d / (root.value / g.divisor))
			b.Says += ", " + quantity.DeltaValue(d, g.Unit) + " to the baseline"
		}
		p.Boxes = append(p.Boxes, b)
		for _, c := range slices.SortedFunc(maps.Keys(n.children), func(a, b function) int {
			return cmp.Or(cmp.Compare(n.children[b].value, n.children[a].value), cmp.Compare(a.name, b.name),
				cmp.Compare(a.kind, b.kind))
		}) {
			var before *node
			if was != nil {
				before = was.children[c]
			}
			add(n.children[c], before, c, x, depth+1)
			x += n.children[c].value / root.value * width
		}
	}
	if root.value > 0 {
		var base *node
		if g.Base != nil {
			base = &g.Base.root
		}
		add(root, base, function{name: "all"}, 0, 0)
	}
	p.Height = (deepest + 1) * rowHeight
	return p
}

// neutral holds the colours, by kind of function, of a graph without a baseline to compare with.
var neutral = map[profile.Kind]string{
	"": "#d6d3d1", profile.User: "#f5d9a8", profile.Kernel: "#c7d7ea", profile.BPF: "#c9e4c5",
}

// colour returns the colour for a function's difference from the baseline, as a fraction of all CPU time. The
// more time the function gained, the redder it is; the more it lost, the bluer.
func colour(part float64) string {
	strength := min(abs(part)*4, 1)
	hue := 12
	if part < 0 {
		hue = 215
	}
	return fmt.Sprintf("hsl(%d %.0f%% %.0f%%)", hue, 15+70*strength, 90-30*strength)
}

func abs(v float64) float64 { return max(v, -v) }

// shortened cuts a name to the number of letters that fit.
func shortened(name string, letters int) string {
	r := []rune(name)
	if len(r) <= letters {
		return name
	}
	return string(r[:letters-1]) + "…"
}

//go:embed flame.tmpl
var source string

var page = template.Must(template.New("flame").Parse(source))

// Page returns an HTML page with graphs, which needs no network, no script and no other file.
func Page(title string, graphs []*Graph) ([]byte, error) {
	data := struct {
		Title    string
		Width    int
		Row      int
		Pictures []picture
	}{Title: title, Width: width, Row: rowHeight - 1}
	for _, g := range graphs {
		if g.divisor > 0 {
			data.Pictures = append(data.Pictures, g.draw())
		}
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("making the page of flame graphs: %w", err)
	}
	return b.Bytes(), nil
}
