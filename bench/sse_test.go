package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// readAll returns the data of all events, and the error that ended the stream if it is not io.EOF.
func readAll(r io.Reader) ([]string, error) {
	events := newEventReader(r)
	var all []string
	for {
		data, err := events.next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, string(data))
	}
}

func TestEventReader(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, stream string
		want         []string
		err          error
	}{
		{"an empty stream has no events", "", nil, nil},
		{"events end with an empty line", "data: a\n\ndata: b\n\n", []string{"a", "b"}, nil},
		{"lines may end with CRLF", "data: a\r\n\r\n", []string{"a"}, nil},
		{"the space after the colon is optional", "data:a\n\n", []string{"a"}, nil},
		{"only one space is taken off", "data:  a\n\n", []string{" a"}, nil},
		{"comments and other fields are skipped", ": ping\n\nevent: x\nid: 1\ndata: a\n\n", []string{"a"}, nil},
		{"data lines of one event are joined", "data: a\ndata: b\n\n", []string{"a\nb"}, nil},
		{"an empty event is an event", "data:\n\n", []string{""}, nil},
		{"an event cut off is an error", "data: a\n\ndata: b", []string{"a"}, io.ErrUnexpectedEOF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range []io.Reader{strings.NewReader(tc.stream), iotest.OneByteReader(strings.NewReader(tc.stream))} {
				got, err := readAll(r)
				if !slices.Equal(got, tc.want) || !errors.Is(err, tc.err) {
					t.Errorf("got %q, %v; want %q, %v", got, err, tc.want, tc.err)
				}
			}
		})
	}
}

func TestEventReaderBoundsMemory(t *testing.T) {
	t.Parallel()
	line := "data: " + strings.Repeat("x", maxEvent/2) + "\n"
	for name, stream := range map[string]string{
		"one long line":     "data: " + strings.Repeat("x", 2*maxEvent),
		"many joined lines": strings.Repeat(line, 4),
	} {
		if _, err := readAll(strings.NewReader(stream)); err == nil || !strings.Contains(err.Error(), "longer than") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

func FuzzEventReader(f *testing.F) {
	f.Add("data: {\"choices\":[]}\n\ndata: [DONE]\n\n")
	f.Add("data:a\r\ndata: b\r\n\r\n: c\n\n")
	f.Add("data")
	f.Fuzz(func(t *testing.T, stream string) {
		whole, err1 := readAll(strings.NewReader(stream))
		bytewise, err2 := readAll(iotest.OneByteReader(strings.NewReader(stream)))
		if !slices.Equal(whole, bytewise) || (err1 == nil) != (err2 == nil) {
			t.Errorf("read at once: %q, %v; byte by byte: %q, %v", whole, err1, bytewise, err2)
		}
	})
}
