package policies

import "testing"

func TestChanceIsUniformForEveryNumberOfEquals(t *testing.T) {
	// Exceeded by one in 10,000 uniform samples with n-1 degrees of freedom.
	for n, limit := range map[int]float64{2: 15.2, 3: 18.5, 4: 21.2, 5: 23.6, 7: 27.9, 16: 44.3, 64: 118, 256: 350} {
		for seed := range uint64(4) {
			c := newChance(seed)
			counts := make([]float64, n)
			const draws = 64_000
			for range draws {
				counts[c.pick(n)]++
				c.advance()
			}
			want, sum := draws/float64(n), 0.0
			for _, got := range counts {
				sum += (got - want) * (got - want) / want
			}
			if sum > limit {
				t.Errorf("seed %d, %d equals: chi-square %.1f over %.1f, counts %v", seed, n, sum, limit, counts)
			}
		}
	}
}

// A draw must not be foreseeable from the one before, or two kinds of requests that alternate would be kept apart for ever.
func TestChanceDrawsInARowAreIndependent(t *testing.T) {
	for seed := range uint64(4) {
		c := newChance(seed)
		var pairs [4][4]float64
		const draws = 160_000
		last := c.pick(4)
		for range draws {
			c.advance()
			next := c.pick(4)
			pairs[last][next]++
			last = next
		}
		for a := range pairs {
			for b, n := range pairs[a] {
				// A round has four draws of each quarter: the same one again comes 3 times in 15, not 4 in 16.
				want := draws / 4 * 4 / 15.0
				if a == b {
					want = draws / 4 * 3 / 15.0
				}
				if n < want*0.93 || n > want*1.12 {
					t.Errorf("seed %d: %d then %d came %v times, want about %v", seed, a, b, n, want)
				}
			}
		}
	}
}

func TestChanceSpreadsEachRoundEvenly(t *testing.T) {
	for seed := range uint64(100) {
		c := newChance(seed)
		for range 10 {
			var counts [4]int
			for range chanceStrata {
				counts[c.pick(4)]++
				c.advance()
			}
			if counts != [4]int{4, 4, 4, 4} {
				t.Fatalf("seed %d: a round of 16 draws among 4 gave %v", seed, counts)
			}
		}
	}
}

func TestChanceSeedsDiffer(t *testing.T) {
	seen := map[[8]int]uint64{}
	for seed := range uint64(100) {
		c := newChance(seed)
		var draws [8]int
		for i := range draws {
			draws[i] = c.pick(1000)
			c.advance()
		}
		if other, ok := seen[draws]; ok {
			t.Errorf("seeds %d and %d draw the same", seed, other)
		}
		seen[draws] = seed
	}
}
