package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"tare/internal/mesh/controlplane/authority"
	"tare/test/ring"
)

// steering is text of several lines that controls a terminal.
const steering = "\x1b[2J\x1b]0;owned\x07\r\n\u009b31m\u202e\x00"

// proxyAttacks are the attacks of TestHostileProxies, each on a separate control plane.
var proxyAttacks = []proxyAttack{
	{name: "names by the million", ends: true, do: func(s *siege) {
		x := s.stream(deltaMethod)
		for i := range 3 {
			x.say(wants(resource.EndpointType, manyNames(100_000, 10, i)...))
		}
		x.refused(codes.ResourceExhausted, "300,000 names bit by bit")
		x = s.stream(worldMethod)
		x.say(wantsWorld(resource.EndpointType, manyNames(1_000_000, 7, 0)...))
		x.refused(codes.ResourceExhausted, "a million at once")
	}},
	{name: "names as long as they may be", do: func(s *siege) {
		const each, length = 3500, 4096 // 14 MiB
		var says []string
		for i := range 4 {
			m := wants(fmt.Sprint("type", i), manyNames(each, length, i)...)
			says = append(says, encodedText(m))
		}
		sideBySide(slices.Repeat([]func(){func() {
			x := s.stream(deltaMethod)
			for _, text := range says {
				if !x.text(text) {
					return
				}
			}
			x.drain()
		}}, 10)...)
	}},
	{name: "names of megabytes and what is no text", ends: true, do: func(s *siege) {
		for what, c := range map[string]struct {
			name string
			want codes.Code
		}{
			"a name of 12 MiB":   {strings.Repeat("n", 12<<20), codes.ResourceExhausted},
			"a name of 64 MiB":   {strings.Repeat("n", 64<<20), codes.ResourceExhausted},
			"a name of 5,000":    {strings.Repeat("n", 5000), codes.ResourceExhausted},
			"no UTF-8":           {"\xff\xfe", codes.InvalidArgument},
			"a half of a letter": {strings.Repeat("ü", 10)[:19], codes.InvalidArgument},
		} {
			x := s.stream(deltaMethod)
			x.text(string(field([]byte(encodedText(wants(resource.EndpointType))), 3, c.name)))
			x.refused(c.want, what)
		}
		x := s.stream(deltaMethod) // a resource may have a name that steers terminals
		x.say(wants(resource.EndpointType, steering))
		if m, ok := x.hear(); !ok || !slices.Equal(m.RemovedResources, []string{steering}) {
			s.Errorf("names that steer: %v, %v", m, ok)
		}
	}},
	{name: "nodes that steer terminals", mtls: true, ends: true, do: func(s *siege) {
		for id, want := range map[string]codes.Code{
			steering: codes.PermissionDenied, strings.Repeat(steering, 40): codes.PermissionDenied,
			"../../tare-owned": codes.PermissionDenied, "/tmp/tare-owned": codes.PermissionDenied,
			hostileProxy + "\x00" + otherProxy: codes.PermissionDenied, strings.Repeat("p", 2000): codes.ResourceExhausted,
		} {
			x := s.stream(deltaMethod)
			m := wants(resource.ClusterType)
			m.Node.Id = id
			x.say(m)
			x.refused(want, fmt.Sprintf("node %.40q", id))
		}
	}},
	{name: "nodes of megabytes", do: func(s *siege) {
		// A list of values that are nothing, of two bytes each: decoded each would take a hundred.
		list := field(nil, 6, strings.Repeat("\x0a\x00", 500_000))
		tree := field(nil, 1, string(field(field(nil, 1, "key"), 2, string(list))))
		deep := field(field(nil, 1, hostileProxy), 3, string(tree))
		says := string(field(field(nil, 1, string(deep)), 2, resource.ClusterType))
		tooLong := encodedText(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType,
			Node: &corev3.Node{Id: hostileProxy, Cluster: strings.Repeat("c", 2<<20)}})
		sideBySide(slices.Repeat([]func(){func() {
			cc := s.grpc(nil)
			for i := 0; s.lasts(); i++ {
				x := s.speak(cc, deltaMethod)
				x.text([]string{says, says, tooLong}[i%3])
				x.hear()
				_ = x.CloseSend() // it may have ended
			}
		}}, 10)...)
	}},
	{name: "another node in each request", ends: true, do: func(s *siege) {
		x := s.stream(deltaMethod)
		x.say(wants(resource.ClusterType))
		first, ok := x.hear()
		if !ok {
			s.Error("it is not served")
			return
		}
		nonce := first.Nonce
		for i := range 100 { // the stream keeps its identity: it gets none of another proxy's clusters
			m := wants(resource.ClusterType, "inbound:"+ring.Service(3+i%3))
			m.Node.Id, m.ResponseNonce = ring.Proxy(3+i%3), nonce
			x.say(m)
			n, ok := x.hear()
			if !ok || len(n.Resources) > 0 {
				s.Errorf("as %s it gets %v, %v", m.Node.Id, n, ok)
			}
			nonce = n.Nonce
		}
		if len(first.Resources) == 0 {
			s.Error("it gets nothing")
		}
	}},
	{name: "unsubscribing what was never subscribed", do: func(s *siege) {
		m := &discoveryv3.DeltaDiscoveryRequest{Node: node(), TypeUrl: resource.EndpointType,
			ResourceNamesUnsubscribe: manyNames(100_000, 10, 0)}
		says := encodedText(m)
		x := s.stream(deltaMethod)
		x.say(wants(resource.EndpointType, "*"))
		for x.text(says) {
		}
	}},
	{name: "a large subscription that changes all the time", do: func(s *siege) {
		sideBySide(slices.Repeat([]func(){func() {
			x := s.stream(deltaMethod)
			x.say(wants(resource.EndpointType, manyNames(100_000, 10, 0)...))
			go x.drain()
			for i := 0; x.say(wants(resource.EndpointType, fmt.Sprint("another", i))); i++ {
			}
		}}, 10)...)
	}},
	{name: "versions of what it never had", do: func(s *siege) {
		versions := func(n, length, version int) string {
			b := []byte(encodedText(wants(resource.ClusterType)))
			for _, name := range manyNames(n, length, 0) {
				b = field(b, 5, string(field(field(nil, 1, name), 2, strings.Repeat("v", version))))
			}
			return string(b)
		}
		tooMany, most, long := versions(1_000_000, 6, 0), versions(130_000, 20, 20), versions(1900, 4090, 4090)
		sideBySide(slices.Repeat([]func(){func() {
			for s.lasts() {
				for _, text := range []string{most, long, tooMany} {
					x := s.stream(deltaMethod)
					x.text(text)
					x.hear()
				}
			}
		}}, 5)...)
	}},
	{name: "nonces that were never given", do: func(s *siege) {
		x := s.stream(deltaMethod)
		x.say(wants(resource.ClusterType))
		m, ok := x.hear()
		if !ok {
			if s.lasts() { // else it was too slow
				s.Error("it is not served")
			}
			return
		}
		responses := make(chan int)
		go func() {
			n := 0
			for ; ; n++ {
				if _, ok := x.hear(); !ok {
					responses <- n
					return
				}
			}
		}()
		nonces := []string{m.Nonce, "", "18446744073709551616", steering, strings.Repeat("9", 4000)}
		for i := 0; i < 1500 && s.lasts(); i++ { // the right nonce and wrong ones, again and again
			x.say(answers(resource.ClusterType, nonces[i%len(nonces)], []string{"", "no"}[i%2]))
		}
		<-s.over.Done()
		if n := <-responses; n > 20 { // there was a change
			s.Errorf("%d responses came of them", n)
		}
	}},
	{name: "a nonce of megabytes", ends: true, do: func(s *siege) {
		for _, m := range []*discoveryv3.DeltaDiscoveryRequest{
			{Node: node(), TypeUrl: resource.ClusterType, ResponseNonce: strings.Repeat("1", 12<<20)},
			{Node: node(), TypeUrl: strings.Repeat("t", 12<<20)},
		} {
			x := s.stream(deltaMethod)
			x.say(m)
			x.refused(codes.ResourceExhausted, "megabytes")
		}
	}},
	{name: "a refusal of every response", idle: true, changes: 5, do: func(s *siege) {
		x := s.stream(deltaMethod)
		for _, m := range wantsAll() {
			x.say(m)
		}
		for responses := 0; ; responses++ {
			m, ok := x.hear()
			if !ok {
				if responses > 50 {
					s.Errorf("it was told %d times", responses)
				}
				return
			}
			x.say(answers(m.TypeUrl, m.Nonce, "this proxy refuses everything"))
		}
	}},
	{name: "a refusal of every response that asks again", do: func(s *siege) {
		sideBySide(slices.Repeat([]func(){func() {
			x := s.stream(deltaMethod)
			x.say(wants(resource.ClusterType))
			for {
				m, ok := x.hear()
				if !ok {
					return
				}
				refusal := answers(m.TypeUrl, m.Nonce, "no")
				for _, r := range m.Resources {
					refusal.ResourceNamesSubscribe = append(refusal.ResourceNamesSubscribe, r.Name)
				}
				x.say(refusal)
			}
		}}, 5)...)
	}},
	{name: "reasons of megabytes that steer terminals", do: func(s *siege) {
		reason := strings.Repeat(steering, 4<<20/len(steering))
		sideBySide(slices.Repeat([]func(){func() {
			x := s.stream(deltaMethod)
			for i := 0; x.say(wants(resource.EndpointType, fmt.Sprint(i))); i++ {
				m, ok := x.hear()
				if !ok || !x.say(answers(m.TypeUrl, m.Nonce, reason)) {
					return
				}
			}
		}}, 5)...)
	}},
	{name: "requests without end", stays: true, do: func(s *siege) {
		says := encodedText(wants(resource.EndpointType, "x"))
		world := encodedText(wantsWorld(resource.ClusterType, "*", "x"))
		cc := s.grpc(nil)
		all := slices.Repeat([]func(){func() { // sixteen streams on one connection
			x := s.speak(cc, deltaMethod)
			go x.drain()
			for x.text(says) {
			}
		}}, 16)
		all = append(all, slices.Repeat([]func(){func() { // and ten streams, each on a new connection
			x := s.stream(worldMethod)
			go x.drain()
			for x.text(world) {
			}
		}}, 10)...)
		sideBySide(all...)
	}},
	{name: "everything again and again and nothing read", do: func(s *siege) {
		sideBySide(slices.Repeat([]func(){func() {
			x := s.stream(worldMethod)
			m := wantsWorld(resource.ListenerType)
			for i := 0; x.say(m); i++ { // for each further name all is sent again; nonces count up
				m.ResourceNames, m.ResponseNonce = []string{"*", fmt.Sprint("x", i)}, fmt.Sprint(i+1)
			}
		}}, 20)...)
	}},
	{name: "names that are not there and nothing read", do: func(s *siege) {
		says := []string{}
		for i := range 3 {
			says = append(says, encodedText(wants(resource.EndpointType, manyNames(40_000, 300, i)...)))
		}
		sideBySide(slices.Repeat([]func(){func() {
			x := s.stream(deltaMethod)
			for i := 0; x.text(says[i%3]); i++ {
			}
		}}, 10)...)
	}},
	{name: "a window of nothing while everything changes", stays: true, changes: 6, do: func(s *siege) {
		for range 30 {
			w, ok := s.wire()
			if !ok {
				return
			}
			_ = w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			_ = w.call(1, deltaMethod)
			for _, m := range wantsAll() {
				_ = w.WriteData(1, false, message(encodedText(m)))
			}
		}
		<-s.over.Done()
	}},
	{name: "reading byte by byte", idle: true, stays: true, changes: 3, do: func(s *siege) {
		for range 20 {
			w, ok := s.wire()
			if !ok {
				return
			}
			_ = w.call(1, deltaMethod)
			for _, m := range wantsAll() {
				_ = w.WriteData(1, false, message(encodedText(m)))
			}
			go func() {
				for b := make([]byte, 1); s.lasts(); time.Sleep(10 * time.Millisecond) {
					if _, err := w.Read(b); err != nil {
						return
					}
				}
			}()
		}
		<-s.over.Done()
	}},
	{name: "thousands of streams that say nothing", idle: true, stays: true, changes: 3, do: func(s *siege) {
		for range 20 {
			w, ok := s.wire()
			if !ok {
				return
			}
			go w.drain()
			for i := range uint32(200) { // a connection may have 16
				if w.call(1+2*i, []string{deltaMethod, worldMethod}[i%2]) != nil {
					break
				}
			}
		}
		<-s.over.Done()
	}},
	{name: "streams that say nothing but headers", ends: true, do: func(s *siege) {
		sideBySide(slices.Repeat([]func(){func() {
			for n := range 100 {
				w, ok := s.wire()
				if !ok {
					return
				}
				go w.drain()
				size := []int{60_000, 10_000}[n%2] // bytes: too many, or not
				long := hpack.HeaderField{Name: "x-long", Value: strings.Repeat("~", size)}
				for i := range uint32(100) {
					if w.call(1+2*i, deltaMethod, long) != nil {
						break
					}
				}
			}
		}}, 4)...)
	}},
	{name: "thousands of connections that say nothing", idle: true, do: func(s *siege) {
		for range 1500 {
			s.conn()
		}
		<-s.over.Done()
	}},
	{name: "more connections than there may be", idle: true, stays: true, flags: []string{"--max-connections", "100"},
		do: func(s *siege) {
			away := 0
			for range 400 {
				c := s.conn()
				if c == nil {
					return
				}
				if _, err := c.Read(make([]byte, 1)); err != nil && s.lasts() { // a proxy that is served gets settings first
					away++
				}
			}
			if away != 301 { // one proxy is served
				s.Errorf("%d of 400 were turned away", away)
			}
			whileItRuns(s.T, s.plane, func() bool {
				return strings.Contains(s.plane.stdout.String(),
					"proxies: 100 connections are open, which is the limit; turned away: 1\n")
			})
			<-s.over.Done()
		}},
	{name: "a thousand connections that end where they are", do: func(s *siege) {
		says := message(encodedText(wants(resource.ClusterType)))
		for i := 0; i < 1000 && s.lasts(); i++ {
			if w, ok := s.wire(); ok {
				_ = w.call(1, deltaMethod)
				var frame bytes.Buffer
				_ = http2.NewFramer(&frame, nil).WriteData(1, false, says)
				_, _ = w.Conn.Write(frame.Bytes()[:i%frame.Len()])
				w.Close()
			}
		}
	}},
	{name: "streams that are opened and reset", do: func(s *siege) {
		sideBySide(slices.Repeat([]func(){func() {
			w, ok := s.wire()
			if !ok {
				return
			}
			id := uint32(1)
			w.flood(siegeLasts, func() error {
				_ = w.call(id, deltaMethod)
				_ = w.WriteData(id, false, message(encodedText(wants(resource.ClusterType))))
				err := w.WriteRSTStream(id, http2.ErrCodeCancel)
				id += 2
				return err
			})
		}}, 3)...)
	}},
	{name: "small frames without end", do: func(s *siege) {
		var all []func()
		for _, say := range []func(w wire) error{
			func(w wire) error { return w.WritePing(false, [8]byte{}) },
			func(w wire) error { return w.WritePing(true, [8]byte{}) },
			func(w wire) error {
				return w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16})
			},
			func(w wire) error { return w.WriteData(1, false, nil) },
			func(w wire) error { return w.WriteWindowUpdate(0, 1) },
			func(w wire) error { return w.WriteRawFrame(0x77, 0xff, 1, []byte("unknown")) },
			func(w wire) error { return w.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
		} {
			all = append(all, func() {
				if w, ok := s.wire(); ok {
					_ = w.call(1, deltaMethod)
					w.flood(siegeLasts, func() error { return say(w) })
				}
			})
		}
		sideBySide(all...)
	}},
	{name: "headers of megabytes", do: func(s *siege) {
		var more []hpack.HeaderField
		for i := range 40_000 {
			more = append(more, hpack.HeaderField{Name: fmt.Sprintf("x-%d", i), Value: strings.Repeat("x", 100)})
		}
		for range 5 {
			if w, ok := s.wire(); ok {
				go w.drain()
				_ = w.call(1, deltaMethod, more...)
			}
		}
		w, ok := s.wire() // and headers that never end
		if !ok {
			return
		}
		_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
		w.flood(siegeLasts, func() error { return w.WriteContinuation(1, false, bytes.Repeat([]byte{0x82}, 1000)) })
	}},
	{name: "messages that say they are huge or compressed", ends: true, do: func(s *siege) {
		for _, c := range []struct {
			prefix  []byte
			headers []hpack.HeaderField
		}{
			{[]byte{0, 0xff, 0xff, 0xff, 0xff, 'x'}, nil},
			{[]byte{0, 0x01, 0, 0, 1, 'x'}, nil},
			{append([]byte{1, 0, 0, 0, 4}, "bomb"...), []hpack.HeaderField{{Name: "grpc-encoding", Value: "gzip"}}},
			{append([]byte{1, 0, 0, 0, 4}, "bomb"...), nil},
			{[]byte{0xff, 0, 0, 0, 1, 'x'}, nil},
		} {
			w, ok := s.wire()
			if !ok {
				s.Error("there is no connection")
				return
			}
			_ = w.SetDeadline(time.Now().Add(siegeEnds / 2))
			_ = w.call(1, deltaMethod, c.headers...)
			_ = w.WriteData(1, false, c.prefix)
			if !w.ended() {
				s.Errorf("the control plane waits for the rest of %x", c.prefix)
			}
		}
	}},
	{name: "messages of which a half comes", do: func(s *siege) {
		sideBySide(slices.Repeat([]func(){func() {
			w, ok := s.wire()
			if !ok {
				return
			}
			const streams, each = 16, 12 << 20
			for i := range uint32(streams) {
				_ = w.call(1+2*i, deltaMethod)
				_ = w.WriteData(1+2*i, false, binary.BigEndian.AppendUint32([]byte{0}, each+1))
			}
			if !w.roomy(streams) {
				return
			}
			go w.drain()
			part := make([]byte, 16<<10)
			for range each / len(part) {
				for i := range uint32(streams) {
					if w.WriteData(1+2*i, false, part) != nil {
						return
					}
				}
			}
			<-s.over.Done()
		}}, 10)...)
	}},
	{name: "halves of messages on hundreds of connections", stays: true, do: func(s *siege) {
		part := make([]byte, 8<<10)
		for range 300 {
			w, ok := s.wire()
			if !ok {
				return
			}
			_ = w.call(1, deltaMethod)
			_ = w.WriteData(1, false, binary.BigEndian.AppendUint32([]byte{0}, 1<<20))
			for range 7 { // as much as the first window has room for
				_ = w.WriteData(1, false, part)
			}
		}
		<-s.over.Done()
	}},
	{name: "messages byte by byte", do: func(s *siege) {
		sideBySide(slices.Repeat([]func(){func() {
			w, ok := s.wire()
			if !ok {
				return
			}
			_ = w.call(1, deltaMethod)
			_ = w.WriteData(1, false, binary.BigEndian.AppendUint32([]byte{0}, 15<<20))
			if !w.roomy(1) {
				return
			}
			go w.drain()
			var pieces bytes.Buffer
			_ = http2.NewFramer(&pieces, nil).WriteData(1, false, []byte{0})
			many := bytes.Repeat(pieces.Bytes(), 4096)
			for {
				if _, err := w.Conn.Write(many); err != nil {
					return
				}
			}
		}}, 3)...)
	}},
	{name: "messages that drip", idle: true, stays: true, changes: 3, do: func(s *siege) {
		for range 50 {
			w, ok := s.wire()
			if !ok {
				return
			}
			_ = w.call(1, deltaMethod)
			_ = w.WriteData(1, false, []byte{0, 0, 0, 10, 0})
			go func() {
				for w.WriteData(1, false, []byte{0}) == nil {
					time.Sleep(20 * time.Millisecond)
				}
			}()
		}
		<-s.over.Done()
	}},
	{name: "types that nobody knows", ends: true, do: func(s *siege) {
		x := s.stream(deltaMethod)
		for i := range 40 {
			x.say(wants(fmt.Sprint("type.googleapis.com/", steering, i), "name"))
		}
		x.refused(codes.ResourceExhausted, "40 types")
		x = s.stream(deltaMethod)
		x.say(wants(""))
		x.refused(codes.InvalidArgument, "no type")
	}},
	{name: "both variants mixed up", ends: true, do: func(s *siege) {
		cc := s.grpc(nil)
		world, delta := s.speak(cc, worldMethod), s.speak(cc, deltaMethod)
		for range 20 { // each stream gets the other variant's requests, in which the same fields mean something else
			world.say(wants(resource.ClusterType, "a"))
			m := wantsWorld(resource.ClusterType)
			m.VersionInfo, m.ResponseNonce = "1", "1"
			delta.say(m)
		}
		for _, x := range []*speech{world, delta} {
			_ = x.CloseSend() // it may have ended
			x.drain()
		}
		world, delta = s.speak(cc, worldMethod), s.speak(cc, deltaMethod) // a connection may have both variants
		world.say(wantsWorld(resource.ClusterType))
		delta.say(wants(resource.ClusterType))
		var text string
		_, ok := delta.hear()
		if err := world.RecvMsg(&text); err != nil || !ok {
			s.Errorf("both on a connection: %v, %v", err, ok)
		}
	}},
	{name: "garbage for messages", ends: true, do: func(s *siege) {
		nested := strings.Repeat("\x0b", 100_000) + strings.Repeat("\x0c", 100_000) // groups in groups
		for what, text := range map[string]string{
			"one byte": "\xff", "a field that is cut": "\x0a\x7f",
			"a length of 2^63":  "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
			"a tag without end": strings.Repeat("\xff", 1000), "groups without end": strings.Repeat("\x0b", 100_000),
			"groups in groups": nested, "zeros": strings.Repeat("\x00", 1<<20), "a group that ends": "\x0c",
		} {
			for _, method := range []string{worldMethod, deltaMethod} {
				x := s.stream(method)
				x.text(text)
				x.refused(codes.InvalidArgument, what)
			}
		}
		for what, text := range map[string]string{
			"nothing": "", "five million fields that nobody knows": strings.Repeat("\x98\x06\x00", 5<<20),
		} {
			x := s.stream(deltaMethod)
			x.text(text)
			x.refused(codes.PermissionDenied, what)
		}
	}},
	{name: "what is no HTTP/2", ends: true, do: func(s *siege) {
		s.hangsUp("GET / HTTP/1.1\r\nHost: tare\r\nAccept: */*\r\n\r\n", strings.Repeat(steering, 10_000),
			strings.Repeat("\x16\x03\x01\xff\xff", 100_000), http2.ClientPreface+"not a frame at all",
			http2.ClientPreface+"\xff\xff\xff\x04\x00\x00\x00\x00\x00")
	}},
	{name: "methods that there are not", ends: true, do: func(s *siege) {
		cc := s.grpc(nil)
		for _, method := range []string{"/", "//", "/x/y", "/../../etc/passwd", certifyMethod, "/grpc.health.v1.Health/Check",
			"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/" + strings.Repeat("m", 50_000)} {
			x := s.speak(cc, method)
			x.text(strings.Repeat("x", 1<<20))
			if got := x.drain(); got != codes.Unimplemented && got != codes.Internal {
				s.Errorf("%.40q: %s", method, got)
			}
		}
	}},

	// From here on proxies must prove who they are.

	{name: "garbage instead of TLS", mtls: true, ends: true, do: func(s *siege) {
		const hello = "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"
		s.hangsUp(http2.ClientPreface, "GET / HTTP/1.1\r\n\r\n", hello+strings.Repeat("\xff", 1<<20),
			strings.Repeat("\x16\x03\x01\x00\x01\x01", 100_000), // a hello of 64 KiB, byte by byte
			strings.Repeat("\x15\x03\x01\x00\x02\x01\x00", 1000), strings.Repeat("\x80", 1<<20))
	}},
	{name: "no certificate", mtls: true, ends: true, do: func(s *siege) {
		for _, method := range []string{worldMethod, deltaMethod, certifyMethod} {
			x := s.speak(s.grpc(s.tlsBy(s.stranger)), method)
			for range 10 {
				x.text(strings.Repeat("x", 1<<20)) // nobody reads it
			}
			x.refused(codes.Unauthenticated, method)
		}
	}},
	{name: "strangers in the place of proxies", mtls: true, stays: true, changes: 6, flags: []string{
		"--max-connections", "100"}, do: func(s *siege) {
		config := s.tlsBy(s.stranger)
		sideBySide(slices.Repeat([]func(){func() {
			for range 100 {
				if c := s.conn(); c != nil {
					_, _ = newWire(tls.Client(c, config), true) // some are turned away
				}
			}
		}}, 4)...)
		<-s.over.Done()
	}},
	{name: "a certificate of another authority", mtls: true, ends: true, do: func(s *siege) {
		other, err := authority.New(authority.Options{})
		if err != nil {
			s.Error(err)
			return
		}
		defer other.Close()
		id, err := authority.Identity(authority.DefaultTrustDomain, ring.Service(2))
		if err != nil {
			s.Error(err)
			return
		}
		c, err := other.Credentials(id)
		if err != nil {
			s.Error(err)
			return
		}
		own, err := s.credentials(hostileProxy)
		c.Roots = own.Roots
		for range 20 {
			x := s.speak(s.grpc(s.tlsBy(func() (authority.Credentials, error) { return c, err })), deltaMethod)
			x.say(wants(resource.ClusterType))
			x.refused(codes.Unavailable, "another authority's")
		}
	}},
	{name: "handshakes without end", mtls: true, do: func(s *siege) {
		sideBySide(slices.Repeat([]func(){func() {
			for s.lasts() {
				if c := s.conn(); c != nil {
					_ = tls.Client(c, s.tls(hostileProxy)).HandshakeContext(s.over)
					c.Close()
				}
			}
		}}, 4)...)
	}},
	{name: "handshakes by halves", mtls: true, idle: true, do: func(s *siege) {
		for range 1000 {
			if c := s.conn(); c != nil {
				_, _ = io.WriteString(c, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
			}
		}
		<-s.over.Done()
	}},
	{name: "proxies that connect and say nothing", mtls: true, stays: true, do: func(s *siege) {
		config := s.tls(hostileProxy)
		slots := make(chan struct{}, 4)
		var all sync.WaitGroup
		for range 300 {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				if c := s.conn(); c != nil {
					if w, err := newWire(tls.Client(c, config), true); err == nil {
						_ = w.call(1, deltaMethod)
					}
				}
			})
		}
		all.Wait()
		<-s.over.Done()
	}},
	{name: "another's node", mtls: true, ends: true, do: func(s *siege) {
		cc := s.grpc(s.tls(hostileProxy))
		for range 200 {
			x := s.speak(cc, deltaMethod)
			x.say(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: otherProxy}, TypeUrl: resource.SecretType,
				ResourceNamesSubscribe: []string{authority.IdentitySecret, "*"}})
			x.refused(codes.PermissionDenied, "another's secrets")
		}
		x := s.speak(cc, deltaMethod)
		x.say(wants(resource.SecretType, authority.IdentitySecret))
		if m, ok := x.hear(); !ok || len(m.Resources) != 1 {
			s.Errorf("its own secret: %v", ok)
		}
	}},
	{name: "a certificate of somebody else", mtls: true, ends: true, do: func(s *siege) {
		by := s.tls(hostileProxy)
		own, other := spiffe(ring.Service(2)), spiffe(ring.Service(3))
		plane := authority.ControlPlane(authority.DefaultTrustDomain)
		entry := field(field(nil, 1, "ImpersonatedIdentity"), 2, string(field(nil, 3, other)))
		impersonated := string(field(nil, 1, string(entry)))
		for what, text := range map[string]string{
			"in the request":    signingRequest(other),
			"as well":           signingRequest(own, other),
			"the control plane": signingRequest(plane),
			"as the subject":    string(field([]byte(signingRequest(own)), 2, other)),
			"as the planes'":    string(field([]byte(signingRequest(own)), 2, plane)),
			"impersonated":      string(field([]byte(signingRequest(own)), 4, impersonated)),
		} {
			if chain, err := s.certificate(by, text, ""); status.Code(err) != codes.PermissionDenied || chain != "" {
				s.Errorf("%s: %d bytes, %v", what, len(chain), err)
			}
		}
		chain, err := s.certificate(by, signingRequest(own), "")
		if err != nil || !strings.Contains(chain, "BEGIN CERTIFICATE") {
			s.Errorf("its own: %v", err)
		}
	}},
	{name: "requests for certificates that are none", mtls: true, ends: true, do: func(s *siege) {
		by := s.tls(hostileProxy)
		good := signingRequest(spiffe(ring.Service(2)))
		block, _ := pem.Decode([]byte(good[bytes.IndexByte([]byte(good), '-'):]))
		forged := bytes.Clone(block.Bytes)
		forged[len(forged)-1] ^= 1
		armoured := func(der []byte) string {
			return string(field(nil, 1, string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: der}))))
		}
		_, ed, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			s.Error(err)
			return
		}
		edwards, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, ed)
		if err != nil {
			s.Error(err)
			return
		}
		for what, text := range map[string]string{
			"nothing": "", "text": string(field(nil, 1, steering)),
			"megabytes": string(field(nil, 1, strings.Repeat("A", 12<<20))), "a wrong signature": armoured(forged),
			"half of one":       armoured(block.Bytes[:len(block.Bytes)/2]),
			"RSA of 16384 bits": armoured(largeRSA(16384)), "RSA of 1024 bits": armoured(largeRSA(1024)),
			"Ed25519": armoured(edwards), "two": string(field(nil, 1, strings.Repeat(string(pem.EncodeToMemory(block)), 2))),
		} {
			began := time.Now()
			chain, err := s.certificate(by, text, "")
			if status.Code(err) != codes.InvalidArgument || chain != "" || len(err.Error()) > 1000 {
				s.Errorf("%s: %d bytes, %v", what, len(chain), err)
			}
			s.Logf("%s: %s", what, time.Since(began))
		}
	}},
	{name: "certificates by the thousand", mtls: true, do: func(s *siege) {
		by := s.tls(hostileProxy)
		text := signingRequest(spiffe(ring.Service(2)))
		var mu sync.Mutex
		given, refused := 0, 0
		sideBySide(slices.Repeat([]func(){func() {
			cc := s.grpc(by)
			for s.lasts() {
				var chain string
				err := cc.Invoke(s.over, certifyMethod, text, &chain)
				mu.Lock()
				switch status.Code(err) {
				case codes.OK:
					given++
				case codes.ResourceExhausted:
					refused++
				}
				mu.Unlock()
			}
		}}, 4)...)
		if given > 30 { // 20 at once, and one a second
			s.Errorf("%d were given", given)
		}
		s.Logf("%d were given, %d refused", given, refused)
	}},
	{name: "requests for certificates with metadata of megabytes", mtls: true, ends: true, do: func(s *siege) {
		by := s.tls(hostileProxy)
		list := field(nil, 6, strings.Repeat("\x0a\x00", 7_000_000))
		tree := field(nil, 1, string(field(field(nil, 1, "key"), 2, string(list))))
		text := string(field([]byte(signingRequest(spiffe(ring.Service(2)))), 4, string(tree)))
		sideBySide(slices.Repeat([]func(){func() {
			_, err := s.certificate(by, text, "")
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.Unavailable { // some are cut off
				s.Errorf("14 MB of metadata: %v", err)
			}
		}}, 5)...)
	}},
	{name: "tokens that do not count", mtls: true, ends: true, do: func(s *siege) {
		by := s.tlsBy(s.stranger)
		text := signingRequest(spiffe(ring.Service(2)))
		good := accountToken(clusterKey(), time.Hour, "tare", "s2")
		if chain, err := s.certificate(by, text, good); err != nil || chain == "" {
			s.Errorf("a token that counts: %v", err)
		}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			s.Error(err)
			return
		}
		forged := accountToken(jose.JSONWebKey{Key: key, KeyID: "cluster"}, time.Hour, "tare", "s2")
		for what, token := range map[string]string{
			"none": "", "text": "token", "escapes": strings.ReplaceAll(good, ".", "%1b[2J"),
			"kilobytes": strings.Repeat("a", 9<<10), "dots": strings.Repeat(".", 8000),
			"expired":     accountToken(clusterKey(), -time.Hour, "tare", "s2"),
			"for another": accountToken(clusterKey(), time.Hour, "other", "s2"), "cut": good[:len(good)-4],
			"of another key": forged,
			"unsigned":       "eyJhbGciOiJub25lIn0." + strings.Split(good, ".")[1] + ".",
		} {
			if chain, err := s.certificate(by, text, token); status.Code(err) != codes.Unauthenticated || chain != "" {
				s.Errorf("%s: %d bytes, %v", what, len(chain), err)
			}
		}
		chain, err := s.certificate(by, text, accountToken(clusterKey(), time.Hour, "tare", "s3"))
		if status.Code(err) != codes.PermissionDenied || chain != "" {
			s.Errorf("another's: %d bytes, %v", len(chain), err)
		}
		cc := s.grpc(by)
		for range 1000 { // guesses, which the control plane soon stops checking
			ctx := metadata.AppendToOutgoingContext(s.over, "authorization", "Bearer "+forged)
			var chain string
			if err := cc.Invoke(ctx, certifyMethod, text, &chain); err == nil {
				s.Error("a guess gives a certificate")
			}
		}
	}},
}

// field adds a field of bytes to a message.
func field(b []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// message frames a message as gRPC does on a stream.
func message(b string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// roomy waits until the other side has enlarged the flow-control window of the given number of streams, to receive the
// rest of their messages. It returns false if the connection ends.
func (w wire) roomy(streams int) bool {
	for streams > 0 {
		f, err := w.ReadFrame()
		if err != nil {
			return false
		}
		if u, ok := f.(*http2.WindowUpdateFrame); ok && u.StreamID != 0 && u.Increment > 1<<20 {
			streams--
		}
	}
	return true
}

// hangsUp sends each text on a new connection, which the control plane must end, or the test fails.
func (s *siege) hangsUp(says ...string) {
	for _, text := range says {
		c := s.conn()
		if c == nil {
			s.Error("there is no connection to be had")
			return
		}
		_ = c.SetDeadline(time.Now().Add(siegeEnds / 2))
		_, _ = io.WriteString(c, text) // it may be cut off
		if _, err := io.Copy(io.Discard, c); err != nil && !hungUp(err) {
			s.Errorf("the control plane holds on to %.20q: %v", text, err)
		}
		c.Close()
	}
}

// stranger returns credentials that have the mesh's roots and no certificate.
func (s *siege) stranger() (authority.Credentials, error) {
	c, err := s.credentials(hostileProxy)
	return authority.Credentials{Roots: c.Roots}, err
}

// certificate asks for a certificate with a message, which it sends as it is, and with a token if there is one.
func (s *siege) certificate(by *tls.Config, text, token string) (chain string, err error) {
	cc := s.grpc(by)
	defer cc.Close()
	ctx, cancel := context.WithTimeout(s.over, time.Minute)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	err = cc.Invoke(ctx, certifyMethod, text, &chain)
	return chain, err
}

// spiffe returns the identity of an account of the namespace default.
func spiffe(account string) string {
	return "spiffe://" + authority.DefaultTrustDomain + "/ns/default/sa/" + account
}

// signingRequest returns a message that asks for a certificate of some identities.
func signingRequest(ids ...string) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	r := &x509.CertificateRequest{}
	for _, id := range ids {
		u, err := url.Parse(id)
		if err != nil {
			panic(err) // the test wrote it
		}
		r.URIs = append(r.URIs, u)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		panic(err)
	}
	return string(field(nil, 1, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))))
}

// largeRSA returns a request for a certificate of an RSA key of the given size, which has no private key, with an
// invalid signature.
func largeRSA(bits int) []byte {
	n := new(big.Int).SetBit(new(big.Int), bits-1, 1)
	n.SetBit(n, 0, 1)
	key, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n, E: 65537})
	if err != nil {
		panic(err)
	}
	encoded := func(der ...byte) asn1.RawValue { return asn1.RawValue{FullBytes: der} }
	sha256WithRSA := asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}
	type info struct {
		Version    int
		Subject    asn1.RawValue
		Key        asn1.RawValue
		Attributes asn1.RawValue
	}
	der, err := asn1.Marshal(struct {
		Info      info
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		info{0, encoded(0x30, 0), encoded(key...), encoded(0xa0, 0)},
		pkix.AlgorithmIdentifier{Algorithm: sha256WithRSA, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: bytes.Repeat([]byte{0x55}, bits/8), BitLength: bits},
	})
	if err != nil {
		panic(err)
	}
	return der
}

// accountToken returns the token of a pod with an account, which expires after its life.
func accountToken(key jose.JSONWebKey, life time.Duration, audience, account string) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		panic(err)
	}
	text, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: "https://kubernetes.default.svc.cluster.local", Audience: jwt.Audience{audience},
		Subject: "system:serviceaccount:default:" + account, Expiry: jwt.NewNumericDate(time.Now().Add(life)),
	}).Claims(map[string]any{"kubernetes.io": map[string]any{
		"namespace": "default", "serviceaccount": map[string]any{"name": account}, "pod": map[string]any{"uid": "u"},
	}}).Serialize()
	if err != nil {
		panic(err)
	}
	return text
}
