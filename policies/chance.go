package policies

import "math/bits"

const (
	chanceStrata     = 16     // strata in a round; a power of two
	chanceStratumBit = 64 - 4 // the bits of a draw below its stratum
	golden           = 0x9e3779b97f4a7c15
)

// chance is a seeded source of uniform draws that stays put until it is told to advance.
//
// Draws come in rounds of 16: each takes one sixteenth of the range, in an order shuffled anew for every round, and a
// uniform point inside it. A single draw is thus uniform and follows no pattern that traffic could fall in step with, while
// draws in a row cannot pile up as independent ones do: one round over four idle replicas gives four requests to each, where
// independent draws leave some replica with none or one in nearly a quarter of all cases.
type chance struct {
	state  uint64 // of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)
	jitter uint64 // the place of the present draw inside its stratum
	at     int    // the present draw's place in strata
	strata [chanceStrata]uint8
}

func newChance(seed uint64) chance {
	c := chance{state: seed, at: chanceStrata - 1}
	for i := range c.strata {
		c.strata[i] = uint8(i)
	}
	c.advance()
	return c
}

// pick gives the present draw as a number below n, which must be positive.
func (c *chance) pick(n int) int {
	draw := uint64(c.strata[c.at])<<chanceStratumBit | c.jitter>>(64-chanceStratumBit)
	high, _ := bits.Mul64(draw, uint64(n))
	return int(high)
}

// advance moves on to the next draw.
func (c *chance) advance() {
	if c.at++; c.at == chanceStrata {
		c.at = 0
		for i := chanceStrata - 1; i > 0; i-- {
			high, _ := bits.Mul64(c.next(), uint64(i+1))
			c.strata[i], c.strata[high] = c.strata[high], c.strata[i]
		}
	}
	c.jitter = c.next()
}

func (c *chance) next() uint64 {
	c.state += golden
	z := c.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
