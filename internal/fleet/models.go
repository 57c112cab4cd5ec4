package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
)

const (
	// MaxModelsBytes is the longest model list worth reading. A card of vLLM 0.32.0 has about 600 bytes.
	MaxModelsBytes = 1 << 20

	maxModels = 1024
)

// Card is one entry of an engine's model list.
type Card struct {
	// ID is the name that requests use.
	ID string
	// Root is the model's directory or repository; for an adapter, the adapter's. Empty if the engine does not say.
	Root string
	// Parent is the model that an adapter belongs to; empty for a base model.
	Parent string
	// MaxModelLen is the most tokens of prompt and output together; 0 if the engine does not say.
	MaxModelLen int
	// Raw is the entry as the engine wrote it, byte for byte.
	Raw json.RawMessage
}

// ParseModels reads the body of an engine's answer to GET /v1/models, of at most [MaxModelsBytes], into cards in the
// engine's order. The cards keep no reference to body. An empty list is an error, for an engine always serves something.
func ParseModels(body []byte) ([]Card, error) {
	if len(body) > MaxModelsBytes {
		return nil, fmt.Errorf("parsing model list: over %d bytes", MaxModelsBytes)
	}
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("parsing model list: %w", err)
	}
	if len(list.Data) == 0 {
		return nil, errors.New("parsing model list: no models")
	}
	if len(list.Data) > maxModels {
		return nil, fmt.Errorf("parsing model list: %d models, over %d", len(list.Data), maxModels)
	}
	cards := make([]Card, len(list.Data))
	for i, raw := range list.Data {
		var fields struct {
			ID          string `json:"id"`
			Root        string `json:"root"`
			Parent      string `json:"parent"`
			MaxModelLen int    `json:"max_model_len"`
		}
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, fmt.Errorf("parsing model %d: %w", i, err)
		}
		if fields.ID == "" {
			return nil, fmt.Errorf("parsing model %d: no id", i)
		}
		cards[i] = Card{fields.ID, fields.Root, fields.Parent, max(0, fields.MaxModelLen), raw}
	}
	return cards, nil
}
