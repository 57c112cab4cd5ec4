package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxEvent bounds one line of a stream, in bytes: a chunk of a chat has a few hundred.
const maxEvent = 1 << 20

// eventReader reads the data of server-sent events (WHATWG HTML, section 9.2, as far as OpenAI-compatible servers use
// it: fields other than data are skipped, and lines end with LF or CRLF).
type eventReader struct {
	sc   *bufio.Scanner
	data []byte
}

func newEventReader(r io.Reader) *eventReader {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 4096), maxEvent)
	return &eventReader{sc: sc}
}

// next returns the data of the next event, valid until the next call. A stream that ends gives io.EOF; one that ends
// in the middle of an event gives io.ErrUnexpectedEOF.
func (r *eventReader) next() ([]byte, error) {
	r.data = r.data[:0]
	open := false // a data line was read that no empty line has ended
	for r.sc.Scan() {
		line := r.sc.Bytes()
		if len(line) == 0 {
			if open {
				return r.data, nil
			}
			continue
		}
		value, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		if open {
			r.data = append(r.data, '\n')
		}
		if len(r.data)+len(value) > maxEvent {
			return nil, fmt.Errorf("reading stream: an event is longer than %d bytes", maxEvent)
		}
		r.data = append(r.data, bytes.TrimPrefix(value, []byte(" "))...)
		open = true
	}
	if err := r.sc.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, fmt.Errorf("reading stream: a line is longer than %d bytes", maxEvent)
		}
		return nil, err
	}
	if open {
		return nil, io.ErrUnexpectedEOF
	}
	return nil, io.EOF
}
