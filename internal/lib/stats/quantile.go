package stats

import (
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// maxCount is the maximum number of samples in a histogram. Up to this number, a count is exact in a float64, and sums
// of a few counts do not overflow.
const maxCount = 1 << 50

// The geometry of a histogram decides how much memory it takes, and a few bytes of text can request any amount. Tare's
// own histograms have 3 digits and end at 600 s in ns; with these bounds one takes at most 256 KiB.
const (
	maxDigits    = 3
	maxTrackable = 1 << 41   // 37 minutes in ns
	maxEncoded   = 512 << 10 // characters; even 32,768 full counters take less
)

// DecodeHistogram decodes an HDR histogram in the V2 compressed form, base64 encoded, as in load.Result. The text may
// be untrusted: one that would take more than 256 KiB of memory is rejected before any is allocated.
func DecodeHistogram(encoded string) (*hdrhistogram.Histogram, error) {
	if err := checkGeometry(encoded); err != nil {
		return nil, fmt.Errorf("decoding a histogram of %d characters: %w", len(encoded), err)
	}
	h, err := hdrhistogram.Decode([]byte(encoded))
	if err != nil {
		return nil, fmt.Errorf("decoding a histogram of %d characters: %w", len(encoded), err)
	}
	if n := h.TotalCount(); n > maxCount {
		return nil, fmt.Errorf("decoding a histogram: it claims %d samples", n)
	}
	return h, nil
}

// checkGeometry returns an error if an encoded histogram exceeds the bounds above. It reads only the header; decoding
// finds all other errors.
func checkGeometry(encoded string) error {
	if len(encoded) > maxEncoded {
		return fmt.Errorf("more than %d KiB", maxEncoded>>10)
	}
	text := base64.NewDecoder(base64.StdEncoding, strings.NewReader(encoded))
	if _, err := io.CopyN(io.Discard, text, 8); err != nil { // skip the kind, and the length of the rest
		return errors.New("its header is incomplete")
	}
	z, err := zlib.NewReader(text)
	if err != nil {
		return err
	}
	var head struct {
		Cookie, Payload, Offset, Digits int32
		Lowest, Highest                 int64
	}
	if err := binary.Read(z, binary.BigEndian, &head); err != nil {
		return fmt.Errorf("reading its header: %w", err)
	}
	if head.Digits > maxDigits || head.Highest > maxTrackable {
		return fmt.Errorf("%d digits up to %d; at most %d up to %d are allowed",
			head.Digits, head.Highest, maxDigits, int64(maxTrackable))
	}
	return nil
}

// MergeHistograms adds histograms of the same quantity into a new one. This, and never an average of quantiles,
// combines several loads of one trial into one distribution.
func MergeHistograms(hs ...*hdrhistogram.Histogram) (*hdrhistogram.Histogram, error) {
	if len(hs) == 0 {
		return nil, fmt.Errorf("merging histograms: there are none")
	}
	widest := 0
	for i, h := range hs {
		if h.HighestTrackableValue() > hs[widest].HighestTrackableValue() {
			widest = i
		}
	}
	sum := hs[widest].Clone()
	for i, h := range hs {
		if i == widest {
			continue
		}
		if sum.TotalCount()+h.TotalCount() > maxCount {
			return nil, fmt.Errorf("merging histograms: more than %d samples", int64(maxCount))
		}
		if dropped := sum.Merge(h); dropped > 0 {
			return nil, fmt.Errorf("merging histograms: %d samples above the largest trackable value %d", dropped,
				sum.HighestTrackableValue())
		}
	}
	return sum, nil
}

// MinBeyond returns how many samples of one trial must lie beyond its q-quantile for Tare to report it. Above p99 it
// is 100, so that the quantile of a trial does not depend on a handful of stalls (10 % standard error of the number
// beyond). Up to p99 it is 10, since the interval over blocks shows the remaining noise. With fewer, the value is
// hardly more than a maximum, and biased.
func MinBeyond(q float64) float64 {
	if q > 0.99 {
		return 100
	}
	return 10
}

// Quantile returns the q-quantile, 0 < q < 1, in the unit of the histogram: the smallest value such that at least a
// fraction q of the samples is at or below it (nearest rank). The rank is rounded up, not to the nearest integer as in
// the histogram's own methods. It returns false if there are too few samples (MinBeyond).
func Quantile(h *hdrhistogram.Histogram, q float64) (float64, bool) { return QuantileWithout(h, 0, q) }

// QuantileWithout is like Quantile, but the largest samples, whose number is missing, are not in the histogram. It also
// returns false if the quantile is one of these.
func QuantileWithout(h *hdrhistogram.Histogram, missing int64, q float64) (float64, bool) {
	held := float64(h.TotalCount())
	rank, enough := rankOf(q, held+float64(missing))
	if !enough || rank > held {
		return 0, false
	}
	return float64(h.ValueAtQuantile(100 * rank / held)), true // a whole rank is exact, because held is at most maxCount
}

// AmongMissing reports whether there are enough samples for a q-quantile, but it is among the missing ones.
func AmongMissing(h *hdrhistogram.Histogram, missing int64, q float64) bool {
	held := float64(h.TotalCount())
	rank, enough := rankOf(q, held+float64(missing))
	return enough && rank > held
}

// rankOf returns the rank of the q-quantile of n samples, and whether enough lie beyond it.
func rankOf(q, n float64) (rank float64, enough bool) {
	const rounding = 1e-9 // because 1 - 0.999 is a little less than a thousandth
	if q <= 0 || q >= 1 || n*(1-q)*(1+rounding) < MinBeyond(q) {
		return 0, false
	}
	return math.Ceil(q*n - max(rounding, 1e-15*n)), true // because 0.99 x 1000 may be a little more than 990
}

// MergeEncoded decodes and adds histograms of the same quantity; nil if there are none. At any time it holds at most
// two decoded histograms.
func MergeEncoded(encoded ...string) (sum *hdrhistogram.Histogram, err error) {
	for _, e := range encoded {
		h, err := DecodeHistogram(e)
		if err != nil {
			return nil, err
		}
		if sum != nil {
			if h, err = MergeHistograms(sum, h); err != nil {
				return nil, err
			}
		}
		sum = h
	}
	return sum, nil
}
