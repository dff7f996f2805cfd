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

// maxCount is the most samples a histogram may hold: up to here a count is exact in a float64, and no sum of a few
// overflows.
const maxCount = 1 << 50

// The geometry of a histogram decides what it takes in memory, and a few bytes of text can ask for any. Tare's own have
// 3 digits and end at 600 s in ns; these bounds let one take 256 KiB at most.
const (
	maxDigits    = 3
	maxTrackable = 1 << 41   // 37 minutes in ns
	maxEncoded   = 512 << 10 // characters; each of the 32,768 counters full to the brim takes less
)

// DecodeHistogram reads an HDR histogram in the V2 compressed form, base64 encoded, as load.Result carries it. The text
// may come from anywhere: one that would take more than 256 KiB of memory is an error, found before any is taken.
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

// checkGeometry reads no more than the head of an encoded histogram. What else can be wrong with it, decoding finds.
func checkGeometry(encoded string) error {
	if len(encoded) > maxEncoded {
		return fmt.Errorf("more than %d KiB", maxEncoded>>10)
	}
	text := base64.NewDecoder(base64.StdEncoding, strings.NewReader(encoded))
	if _, err := io.CopyN(io.Discard, text, 8); err != nil { // the kind, and the length of the rest
		return errors.New("it ends in its head")
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
		return fmt.Errorf("reading its head: %w", err)
	}
	if head.Digits > maxDigits || head.Highest > maxTrackable {
		return fmt.Errorf("%d digits up to %d; at most %d up to %d are allowed",
			head.Digits, head.Highest, maxDigits, int64(maxTrackable))
	}
	return nil
}

// MergeHistograms adds histograms of the same quantity into a new one. That, and never an average of quantiles, is how
// several loads of one trial become one distribution.
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

// MinBeyond is how many samples of one trial must lie beyond its q-quantile for Tare to give it. Above p99 it is 100,
// so that the quantile of a trial does not hang on a handful of stalls (10 % standard error of the number beyond). Up
// to p99 it is 10, since the interval over blocks shows what noise is left; below that the value is hardly more than a
// maximum, and biased.
func MinBeyond(q float64) float64 {
	if q > 0.99 {
		return 100
	}
	return 10
}

// Quantile is the q-quantile, 0 < q < 1, in the unit of the histogram: the smallest value at or below which at least
// the part q of its samples lies (nearest rank). The rank is rounded up, not to the nearest as the histogram's own
// methods do. It is false when the samples cannot carry it (MinBeyond).
func Quantile(h *hdrhistogram.Histogram, q float64) (float64, bool) {
	const rounding = 1e-9 // 1 - 0.999 is a little less than a thousandth
	n := float64(h.TotalCount())
	if q <= 0 || q >= 1 || n*(1-q)*(1+rounding) < MinBeyond(q) {
		return 0, false
	}
	rank := math.Ceil(q*n - max(rounding, 1e-15*n))         // 0.99 x 1000 may come to a little more than 990
	return float64(h.ValueAtQuantile(100 * rank / n)), true // a whole rank rounds to itself: n is at most maxCount
}

// MergeEncoded decodes histograms of the same quantity and adds them; nil when there are none. It holds two of them
// decoded at a time, however many there are.
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
