package http

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The limits that a session sets for the server. The windows are as large as those of Go's own client (net/http: 4 MiB
// for a stream, 1 GiB for a connection). They take no memory, because data is discarded as it arrives.
const (
	streamCredit     = 4 << 20  // bytes that may arrive on a stream before the session grants more
	connectionCredit = 1 << 30  // bytes that may arrive on the connection before the session grants more
	largestFrame     = 16 << 10 // bytes of a frame's payload, in both directions: the smallest limit that HTTP/2 permits
	largestWindow    = 1<<31 - 1
	firstWindow      = 65535 // initial window of both sides, in bytes: RFC 9113, section 6.9.2
	tableSize        = 4096  // initial bytes of HPACK's dynamic tables: RFC 9113, section 6.5.2
	supposedStreams  = 100   // concurrent streams until the server sets a limit: the lowest limit that RFC 9113 recommends
	lastStreamID     = 1<<31 - 1

	maxFragments = 64        // frames of one header block; maxHead bounds its bytes
	maxIdle      = 10_000    // consecutive frames that advance no request
	maxReplies   = 64 << 10  // bytes of replies to SETTINGS and PING that wait because the server does not read them
	maxBuffered  = 256 << 10 // bytes of output that wait to be written; beyond this, no more of the bodies is added
)

// sessionError is an HTTP/2 protocol violation by the server. It ends the connection.
type sessionError struct {
	code http2.ErrCode
	what string
}

func (e *sessionError) Error() string {
	return fmt.Sprintf("not valid HTTP/2: %s (%s)", e.what, e.code)
}

func breach(code http2.ErrCode, what string) error { return &sessionError{code, what} }

// owner is notified when a session's streams end.
type owner interface {
	// streamEnded is called once for each stream that ends without being cancelled, because it was answered (end.kind is
	// none) or failed. The stream is free by then, so the owner may reuse it at once.
	streamEnded(index int, end ending)
}

// ending describes how a stream ended.
type ending struct {
	kind   failure
	status int  // status of the response; 0 if there was none
	code   int  // grpc-status, for kind badGRPC
	unread bool // the server has not processed the request and never will, so it can be sent again elsewhere
}

// codec writes frames for the sessions of one thread, which use it one after the other.
type codec struct {
	writer *http2.Framer
	to     *session // the session to whose output the writer appends
}

func newCodec() *codec {
	c := new(codec)
	c.writer = http2.NewFramer(c, nil)
	return c
}

func (c *codec) Write(p []byte) (int, error) {
	c.to.out = append(c.to.out, p...)
	return len(p), nil
}

// session is the client's side of one HTTP/2 connection, without its socket: feed takes bytes from the server, and out
// holds bytes for the server. x/net's Framer and hpack read and write the frames. The Framer cannot resume a partial
// read, so it gets a frame only once all of it has arrived; DATA is discarded without being stored.
type session struct {
	owner   owner
	codec   *codec
	request *request2 // the request, which is sent on every stream
	out     []byte    // bytes to be written to the server
	replies int       // upper bound of the bytes in out that acknowledge SETTINGS and PING

	reader  *http2.Framer
	in      bytes.Reader
	torn    []byte            // beginning of a frame, kept by the owner until the rest arrives
	header  http2.FrameHeader // header of the current incoming frame
	started bool              // header is valid
	data    dataFrame
	idle    int // consecutive frames that advanced no request

	decoder *hpack.Decoder
	block   headerBlock

	encoder  *hpack.Encoder // nil: use the prepared blocks in request
	encoded  bytes.Buffer
	requests int // number of requests sent so far

	streams    []stream // a stream is free if its id is 0
	active     int
	sending    int    // streams that have a part of their body still to send
	turn       int    // index of the stream that sends the next part of its body
	nextID     uint32 // id of the next stream
	maxStreams uint32 // maximum number of concurrent streams that the server allows
	settled    bool   // the server's SETTINGS have arrived
	leaving    bool   // no further requests may be sent, because of GOAWAY or because the stream numbers are used up
	lastID     uint32 // after GOAWAY: the last stream that the server processes

	window  int64 // bytes that may be sent
	initial int64 // window of a new stream
	credit  int64 // bytes that may arrive
	spent   int64 // bytes that have arrived since credit was last granted
}

// stream is one request and its response.
type stream struct {
	id      uint32
	answer  phase2
	status  int
	window  int64 // bytes that may be sent
	credit  int64 // bytes that may arrive
	spent   int64
	left    int // bytes of the body that are still to be sent
	message message
}

type phase2 uint8

const (
	awaitsHead phase2 = iota
	awaitsBody
)

// dataFrame is the DATA frame that is arriving.
type dataFrame struct {
	index  int // index of its stream; -1: the stream has ended
	length int // bytes of content still to come
	pad    int // bytes of padding still to come after the content
	padded bool
	end    bool
}

// headerBlock is a header block that is arriving, in one or more frames.
type headerBlock struct {
	index      int // index of its stream; -1: the stream has ended
	end        bool
	size       int
	fragments  int
	status     string
	grpcStatus string
}

// greeting holds the first bytes that a client sends (RFC 9113, section 3.4).
var greeting = func() []byte {
	s := &session{codec: newCodec()}
	s.codec.to, s.out = s, []byte(http2.ClientPreface)
	w := s.codec.writer
	err := errors.Join(
		w.WriteSettings(
			http2.Setting{ID: http2.SettingEnablePush, Val: 0},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamCredit},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHead}),
		w.WriteWindowUpdate(0, connectionCredit-firstWindow))
	if err != nil {
		panic(err) // cannot happen: the arguments are constant
	}
	return s.out
}()

// newSession returns the session of a new connection that carries at most the given number of streams at once. Its
// output begins with the greeting.
func newSession(o owner, c *codec, r *request2, streams int) *session {
	s := &session{
		owner: o, codec: c, request: r,
		out:     append(make([]byte, 0, len(greeting)+len(r.first)+64), greeting...),
		streams: make([]stream, streams),
		nextID:  1, maxStreams: supposedStreams,
		window: firstWindow, initial: firstWindow, credit: connectionCredit,
		data: dataFrame{index: -1}, block: headerBlock{index: -1},
	}
	if !r.repeats {
		s.encoder = hpack.NewEncoder(&s.encoded)
	}
	s.reader = http2.NewFramer(nil, &s.in)
	s.reader.SetMaxReadFrameSize(largestFrame)
	s.decoder = hpack.NewDecoder(tableSize, s.field)
	s.decoder.SetMaxStringLength(maxHead)
	return s
}

// write directs the shared writer to this session's output and returns it. The writer fails only for invalid arguments,
// which this package does not use.
func (s *session) write() *http2.Framer {
	s.codec.to = s
	return s.codec.writer
}

// open reports whether a request can be sent now.
func (s *session) open() bool {
	return !s.leaving && s.active < len(s.streams) && uint32(s.active) < s.maxStreams
}

// send sends a request on a free stream.
func (s *session) send(index int) error {
	st := &s.streams[index]
	*st = stream{id: s.nextID, window: s.initial, credit: streamCredit, left: len(s.request.body)}
	s.active++
	if s.nextID += 2; s.nextID > lastStreamID {
		s.leaving, s.lastID = true, lastStreamID
	}
	block, err := s.fields()
	if err != nil {
		return err
	}
	err = s.write().WriteHeaders(http2.HeadersFrameParam{
		StreamID: st.id, BlockFragment: block, EndStream: st.left == 0, EndHeaders: true,
	})
	if st.left > 0 {
		s.sending++
		s.pump()
	}
	return err
}

// fields returns the header block of the next request. All requests on a connection are the same, so all header blocks
// after the first consist of references to the HPACK table that the first block has filled.
func (s *session) fields() ([]byte, error) {
	s.requests++
	if s.encoder == nil {
		if s.requests == 1 {
			return s.request.first, nil
		}
		return s.request.again, nil
	}
	s.encoded.Reset()
	for _, f := range s.request.fields {
		if err := s.encoder.WriteField(f); err != nil {
			return nil, err
		}
	}
	return s.encoded.Bytes(), nil
}

// encodeAnew adapts the encoding to the size of the server's HPACK table, in bytes. If the prepared header blocks need
// a larger table, an encoder replaces them.
func (s *session) encodeAnew(size uint32) {
	if s.encoder == nil {
		if size >= tableSize && s.request.repeats {
			return
		}
		s.encoder = hpack.NewEncoder(&s.encoded)
		s.encoder.SetMaxDynamicTableSize(0) // empties the server's table, whose contents the encoder does not know
	}
	s.encoder.SetMaxDynamicTableSizeLimit(min(size, tableSize))
	s.encoder.SetMaxDynamicTableSize(min(size, tableSize))
}

// cancel resets a stream and releases it, without notifying the owner.
func (s *session) cancel(index int, code http2.ErrCode) {
	st := &s.streams[index]
	if st.id == 0 {
		return
	}
	_ = s.write().WriteRSTStream(st.id, code)
	s.release(index)
}

// release marks the stream as free.
func (s *session) release(index int) {
	st := &s.streams[index]
	if st.left > 0 {
		s.sending--
	}
	if s.data.index == index {
		s.data.index = -1
	}
	if s.block.index == index {
		s.block.index = -1
	}
	*st = stream{}
	s.active--
}

// end releases the stream and notifies the owner.
func (s *session) end(index int, e ending) {
	s.release(index)
	s.owner.streamEnded(index, e)
}

// pump adds as much of the bodies to the output as the windows and maxBuffered allow, taking one frame from each stream
// in turn.
func (s *session) pump() {
	for moved := true; moved && s.sending > 0 && len(s.out) < maxBuffered; {
		moved = false
		for range s.streams {
			i := s.turn
			s.turn = (s.turn + 1) % len(s.streams)
			st := &s.streams[i]
			n := int(min(int64(st.left), largestFrame, st.window, s.window))
			if n <= 0 {
				continue
			}
			from := len(s.request.body) - st.left
			_ = s.write().WriteData(st.id, n == st.left, s.request.body[from:from+n])
			st.left -= n
			st.window -= int64(n)
			s.window -= int64(n)
			if st.left == 0 {
				s.sending--
			}
			moved, s.idle = true, 0
			if len(s.out) >= maxBuffered {
				return
			}
		}
	}
}

// wrote must be called when all output has been written.
func (s *session) wrote() {
	s.out, s.replies = s.out[:0], 0
	if s.sending > 0 {
		s.pump()
	}
}

// find returns the index of the open stream with the given id, or -1 if there is none.
func (s *session) find(id uint32) int {
	for i := range s.streams {
		if s.streams[i].id == id {
			return i
		}
	}
	return -1
}

// feed processes bytes from the server and returns how many it used. The remaining bytes are the beginning of a frame;
// the owner must pass them again, together with the bytes that follow. An error ends the connection.
func (s *session) feed(p []byte) (used int, err error) {
	for err == nil {
		if s.data.length+s.data.pad > 0 {
			used += s.pass(p[used:])
			if s.data.length+s.data.pad > 0 {
				return used, nil
			}
			err = s.dataEnded()
			continue
		}
		if !s.started {
			if len(p)-used < 9 {
				return used, nil
			}
			s.in.Reset(p[used : used+9])
			if s.header, err = s.reader.ReadFrameHeader(); err != nil {
				return used, s.broken(err)
			}
			if !s.settled && s.header.Type != http2.FrameSettings {
				return used, breach(http2.ErrCodeProtocol, "the first frame is not SETTINGS")
			}
			used += 9
			s.started = true
		}
		length := int(s.header.Length)
		if s.header.Type == http2.FrameData {
			if s.header.Flags.Has(http2.FlagDataPadded) {
				length = min(length, 1) // the length of the padding
			} else {
				length = 0
			}
		}
		if len(p)-used < length {
			return used, nil
		}
		if s.idle++; s.idle > maxIdle {
			return used, breach(http2.ErrCodeEnhanceYourCalm, "thousands of frames that advance no request")
		}
		payload := p[used : used+length]
		used += length
		s.started = false
		switch s.header.Type {
		case http2.FrameData:
			err = s.dataBegun(payload)
		case http2.FrameHeaders, http2.FrameContinuation:
			err = s.headers(payload)
		default:
			err = s.control(payload)
		}
	}
	return used, err
}

// broken converts an error of the Framer to a sessionError.
func (s *session) broken(err error) error {
	var connection http2.ConnectionError
	switch {
	case errors.As(err, &connection):
		return breach(http2.ErrCode(connection), fmt.Sprint(s.reader.ErrorDetail()))
	case errors.Is(err, http2.ErrFrameTooLarge):
		return breach(http2.ErrCodeFrameSize, err.Error())
	}
	return breach(http2.ErrCodeProtocol, err.Error())
}

// dataBegun processes the start of a DATA frame. If the frame is padded, padding holds the frame's first byte, which is
// the length of the padding.
func (s *session) dataBegun(padding []byte) error {
	h := s.header
	if h.StreamID == 0 || h.StreamID >= s.nextID || h.StreamID%2 == 0 {
		return breach(http2.ErrCodeProtocol, "DATA on a stream that was never opened")
	}
	length := int64(h.Length)
	if s.credit -= length; s.credit < 0 {
		return breach(http2.ErrCodeFlowControl, "more DATA than the connection's window")
	}
	s.spent += length
	d := dataFrame{
		index: s.find(h.StreamID), length: int(h.Length), padded: h.Flags.Has(http2.FlagDataPadded),
		end: h.Flags.Has(http2.FlagDataEndStream),
	}
	if d.padded {
		if h.Length == 0 || int(padding[0]) > d.length-1 {
			return breach(http2.ErrCodeProtocol, "padding longer than its frame")
		}
		d.pad = int(padding[0])
		d.length -= 1 + d.pad
	}
	if d.index >= 0 {
		st := &s.streams[d.index]
		st.credit -= length
		st.spent += length
		switch {
		case st.credit < 0:
			s.fail(d.index, http2.ErrCodeFlowControl)
			d.index = -1
		case st.answer == awaitsHead:
			s.fail(d.index, http2.ErrCodeProtocol)
			d.index = -1
		case d.length > 0:
			s.idle = 0
		}
	}
	if s.data = d; d.length+d.pad == 0 {
		return s.dataEnded()
	}
	return nil
}

// pass processes the next bytes of a DATA frame.
func (s *session) pass(p []byte) (used int) {
	d := &s.data
	used = min(d.length, len(p))
	d.length -= used
	if used > 0 && d.index >= 0 && s.request.grpc && !s.streams[d.index].message.feed(p[:used]) {
		s.fail(d.index, http2.ErrCodeProtocol)
	}
	more := min(d.pad, len(p)-used)
	d.pad -= more
	return used + more
}

// dataEnded processes the end of a DATA frame. It grants the server new credit once half of a window has been used.
func (s *session) dataEnded() error {
	if s.spent >= connectionCredit/2 {
		_ = s.write().WriteWindowUpdate(0, uint32(s.spent))
		s.credit, s.spent = s.credit+s.spent, 0
	}
	d := s.data
	s.data = dataFrame{index: -1}
	if d.index < 0 {
		return nil
	}
	st := &s.streams[d.index]
	if d.end {
		s.complete(d.index)
	} else if st.spent >= streamCredit/2 {
		_ = s.write().WriteWindowUpdate(st.id, uint32(st.spent))
		st.credit, st.spent = st.credit+st.spent, 0
	}
	return nil
}

// complete ends a stream whose response is complete.
func (s *session) complete(index int) {
	s.idle = 0
	st := &s.streams[index]
	e := ending{status: st.status}
	if st.left > 0 { // RFC 9113, section 8.1: the server does not need the rest of the request
		_ = s.write().WriteRSTStream(st.id, http2.ErrCodeCancel)
	}
	if s.request.grpc { // a gRPC response must end with a trailer, and this one has none
		e.kind = badResponse
		if st.status != 200 {
			e.kind = wrongStatus(st.status)
		}
	}
	s.end(index, e)
}

// wrongStatus returns the failure of a gRPC call whose HTTP status is not 200.
func wrongStatus(status int) failure {
	if status >= 400 {
		return badStatus
	}
	return badResponse
}

// fail ends a stream on which the server violated the protocol.
func (s *session) fail(index int, code http2.ErrCode) {
	_ = s.write().WriteRSTStream(s.streams[index].id, code)
	s.end(index, ending{kind: badResponse})
}

// headers processes a HEADERS or CONTINUATION frame. The Framer has already checked the order of frames.
func (s *session) headers(payload []byte) error {
	h := s.header
	fragment := payload
	b := &s.block
	if h.Type == http2.FrameHeaders {
		if h.StreamID == 0 || h.StreamID >= s.nextID || h.StreamID%2 == 0 {
			return breach(http2.ErrCodeProtocol, "HEADERS on a stream that was never opened")
		}
		var ok bool
		if fragment, ok = unwrap(h.Flags, payload); !ok {
			return breach(http2.ErrCodeProtocol, "padding longer than its frame")
		}
		*b = headerBlock{index: s.find(h.StreamID), end: h.Flags.Has(http2.FlagHeadersEndStream)}
		s.decoder.SetEmitEnabled(s.wanted())
	}
	b.size += len(fragment)
	if b.fragments++; b.size > maxHead || b.fragments > maxFragments {
		return breach(http2.ErrCodeEnhanceYourCalm, "header longer than 64 KiB or 64 frames")
	}
	if _, err := s.decoder.Write(fragment); err != nil {
		return breach(http2.ErrCodeCompression, err.Error())
	}
	if !h.Flags.Has(http2.FlagHeadersEndHeaders) {
		return nil
	}
	if err := s.decoder.Close(); err != nil {
		return breach(http2.ErrCodeCompression, err.Error())
	}
	if b.index >= 0 {
		s.head(*b)
	}
	s.block = headerBlock{index: -1}
	return nil
}

// unwrap removes padding and priority from the payload of a HEADERS frame (RFC 9113, section 6.2).
func unwrap(flags http2.Flags, p []byte) (fragment []byte, ok bool) {
	pad := 0
	if flags.Has(http2.FlagHeadersPadded) {
		if len(p) == 0 {
			return nil, false
		}
		pad, p = int(p[0]), p[1:]
	}
	if flags.Has(http2.FlagHeadersPriority) {
		if len(p) < 5 {
			return nil, false
		}
		p = p[5:]
	}
	if pad > len(p) {
		return nil, false
	}
	return p[:len(p)-pad], true
}

// wanted reports whether the current header block still lacks a field that the session needs. If not, the decoder emits
// no more fields, which saves the decompression.
func (s *session) wanted() bool {
	b := &s.block
	if b.index < 0 {
		return false
	}
	if s.streams[b.index].answer == awaitsHead && b.status == "" {
		return true
	}
	return b.end && s.request.grpc && b.grpcStatus == ""
}

// field stores a field of the current header block if the session needs it.
func (s *session) field(f hpack.HeaderField) {
	switch f.Name {
	case ":status":
		s.block.status = f.Value
	case "grpc-status":
		s.block.grpcStatus = f.Value
	}
	s.decoder.SetEmitEnabled(s.wanted())
}

// head processes a complete header block of a stream: the head of an interim or final response, or a trailer.
func (s *session) head(b headerBlock) {
	st := &s.streams[b.index]
	if st.answer == awaitsBody {
		switch {
		case !b.end:
			s.fail(b.index, http2.ErrCodeProtocol)
		case s.request.grpc:
			s.trailer(b)
		default:
			s.complete(b.index)
		}
		return
	}
	status, err := strconv.Atoi(b.status)
	switch {
	case err != nil || len(b.status) != 3 || status < 100 || status == 101 || status > 599, status < 200 && b.end:
		s.fail(b.index, http2.ErrCodeProtocol)
	case status < 200: // interim: the final response follows
	default:
		st.status, st.answer, s.idle = status, awaitsBody, 0
		switch {
		case b.end && s.request.grpc && b.grpcStatus != "":
			s.trailer(b)
		case b.end:
			s.complete(b.index)
		}
	}
}

// trailer ends a gRPC call with the result that its trailer contains.
func (s *session) trailer(b headerBlock) {
	st := &s.streams[b.index]
	s.idle = 0
	e := ending{status: st.status}
	code, err := strconv.ParseUint(b.grpcStatus, 10, 31)
	switch {
	case st.status != 200:
		e.kind = wrongStatus(st.status)
	case err != nil:
		e.kind = badResponse
	case code != 0:
		e.kind, e.code = badGRPC, int(code)
	case !st.message.one():
		e.kind = badResponse
	}
	if st.left > 0 {
		_ = s.write().WriteRSTStream(st.id, http2.ErrCodeCancel)
	}
	s.end(b.index, e)
}

// control processes a frame other than DATA, HEADERS and CONTINUATION.
func (s *session) control(payload []byte) error {
	s.in.Reset(payload)
	frame, err := s.reader.ReadFrameForHeader(s.header)
	if err != nil {
		var one http2.StreamError
		if errors.As(err, &one) {
			if i := s.find(one.StreamID); i >= 0 {
				s.fail(i, one.Code)
			}
			return nil
		}
		return s.broken(err)
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		return s.settings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = s.write().WritePing(true, f.Data)
			return s.replied(9 + len(f.Data))
		}
	case *http2.WindowUpdateFrame:
		return s.granted(f.StreamID, int64(f.Increment))
	case *http2.RSTStreamFrame:
		return s.reset(f)
	case *http2.GoAwayFrame:
		return s.goAway(f)
	case *http2.PushPromiseFrame:
		return breach(http2.ErrCodeProtocol, "a push that was forbidden")
	}
	return nil
}

// replied counts n more bytes of replies to SETTINGS and PING. It returns an error if too many wait to be written,
// because the server does not read them.
func (s *session) replied(n int) error {
	if s.replies += n; s.replies > maxReplies {
		return breach(http2.ErrCodeEnhanceYourCalm, "SETTINGS and PINGs whose answers it does not read")
	}
	return nil
}

func (s *session) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		if !s.settled {
			return breach(http2.ErrCodeProtocol, "an acknowledgement of SETTINGS before its own SETTINGS")
		}
		return nil
	}
	if !s.settled {
		s.settled, s.maxStreams = true, 1<<32-1 // no limit, unless SETTINGS sets one
	}
	before := s.initial
	for i := range f.NumSettings() {
		one := f.Setting(i)
		if err := one.Valid(); err != nil {
			return s.broken(err)
		}
		switch one.ID {
		case http2.SettingHeaderTableSize:
			s.encodeAnew(one.Val)
		case http2.SettingMaxConcurrentStreams:
			s.maxStreams = one.Val
		case http2.SettingInitialWindowSize:
			s.initial = int64(one.Val)
		}
	}
	for i := range s.streams {
		if st := &s.streams[i]; st.id != 0 {
			if st.window += s.initial - before; st.window > largestWindow {
				return breach(http2.ErrCodeFlowControl, "a window beyond 2^31-1")
			}
		}
	}
	_ = s.write().WriteSettingsAck()
	s.pump()
	return s.replied(9)
}

// granted processes a WINDOW_UPDATE.
func (s *session) granted(id uint32, n int64) error {
	if id == 0 {
		if s.window += n; s.window > largestWindow {
			return breach(http2.ErrCodeFlowControl, "a window beyond 2^31-1")
		}
		s.pump()
		return nil
	}
	if id >= s.nextID || id%2 == 0 {
		return breach(http2.ErrCodeProtocol, "WINDOW_UPDATE on a stream that was never opened")
	}
	if i := s.find(id); i >= 0 {
		st := &s.streams[i]
		if st.window += n; st.window > largestWindow {
			s.fail(i, http2.ErrCodeFlowControl)
			return nil
		}
		s.pump()
	}
	return nil
}

func (s *session) reset(f *http2.RSTStreamFrame) error {
	if f.StreamID >= s.nextID || f.StreamID%2 == 0 {
		return breach(http2.ErrCodeProtocol, "RST_STREAM on a stream that was never opened")
	}
	if i := s.find(f.StreamID); i >= 0 {
		kind := streamReset
		if f.ErrCode == http2.ErrCodeRefusedStream {
			kind = streamRefused
		}
		s.end(i, ending{kind: kind})
	}
	return nil
}

func (s *session) goAway(f *http2.GoAwayFrame) error {
	if s.lastID != 0 && f.LastStreamID > s.lastID {
		return breach(http2.ErrCodeProtocol, "GOAWAY that takes back an earlier one")
	}
	s.leaving, s.lastID = true, f.LastStreamID
	for i := range s.streams {
		if st := &s.streams[i]; st.id > f.LastStreamID {
			s.end(i, ending{kind: connectionLeft, unread: true})
		}
	}
	return nil
}

// message parses the messages of a gRPC stream (doc/PROTOCOL-HTTP2.md of grpc/grpc). A prefix precedes each message: a
// byte that is 1 if the message is compressed, and four bytes with the message's length.
type message struct {
	prefix uint8  // bytes of the prefix so far
	size   uint32 // length in the prefix so far
	left   uint32 // bytes of the message still to come
	whole  uint32 // complete messages so far
}

// feed processes the next bytes. It returns false if a message is compressed, or if there is more than one message.
func (m *message) feed(p []byte) bool {
	for len(p) > 0 {
		if m.left > 0 {
			n := min(m.left, uint32(len(p)))
			p = p[n:]
			if m.left -= n; m.left == 0 {
				m.whole++
			}
			continue
		}
		if m.prefix == 0 && p[0] != 0 {
			return false // compressed: no encoding was offered
		}
		m.size = m.size<<8 | uint32(p[0])
		p = p[1:]
		if m.prefix++; m.prefix == 5 {
			if m.left = m.size; m.left == 0 {
				m.whole++
			}
			m.prefix, m.size = 0, 0
		}
	}
	return m.whole <= 1 // a unary call has one answer
}

// one reports whether exactly one complete message has arrived.
func (m *message) one() bool { return m.whole == 1 && m.left == 0 && m.prefix == 0 }

// request2 is the prepared HTTP/2 request for a target.
type request2 struct {
	grpc         bool
	fields       []hpack.HeaderField
	first, again []byte // header blocks of a connection's first request, and of all later ones
	repeats      bool   // whether again has only references to the HPACK table, so that all later requests can use it
	body         []byte
}

// encode sets r.first, r.again and r.repeats.
func (r *request2) encode() error {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, into := range []*[]byte{&r.first, &r.again} {
		block.Reset()
		for _, f := range r.fields {
			if err := e.WriteField(f); err != nil {
				return err
			}
		}
		*into = bytes.Clone(block.Bytes())
	}
	// Each byte of r.again must be a complete reference to the table: its highest bit must be set (RFC 7541, section 6.1),
	// and its index must be less than 127, because larger indexes take several bytes.
	r.repeats = true
	for _, b := range r.again {
		r.repeats = r.repeats && b > 0x80 && b < 0xff
	}
	return nil
}

// grpcMessage returns a gRPC message, with its prefix, that contains a google.protobuf.BytesValue. size is the length
// of the value in bytes.
func grpcMessage(size int) []byte {
	var m []byte
	if size > 0 {
		m = append(m, 1<<3|2) // field 1, length-delimited
		m = binary.AppendUvarint(m, uint64(size))
	}
	m = append(m, filling(size)...)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

// filling returns size bytes to fill a body with.
func filling(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = 'a' + byte(i%26)
	}
	return b
}
