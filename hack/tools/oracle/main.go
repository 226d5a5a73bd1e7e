// oracle answers how Kubernetes' own code reads what podbridge reads too: one line of JSON for each line of JSON on
// standard input.
//
//	{"quantity": "1e3"}                              -> {"digits": "1000", "scale": 0}, or {"error": "..."}
//	{"integer": "1_000"}                             -> the same: the rule of a label for Gt and Lt
//	{"cel": "...", "driver": "...", "devices": [..]} -> {"matches": ["true", "false", "error"]}, or {"error": "..."}
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Quantity *string  `json:"quantity"`
	Integer  *string  `json:"integer"`
	Cel      string   `json:"cel"`
	Driver   string   `json:"driver"`
	Devices  []device `json:"devices"`
}

type device struct {
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
}

type answer struct {
	Digits  string   `json:"digits,omitempty"`
	Scale   int      `json:"scale"` // the value is digits / 10^scale
	Matches []string `json:"matches,omitempty"`
	Error   string   `json:"error,omitempty"`
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<24)
	output := json.NewEncoder(os.Stdout)
	for input.Scan() {
		var asked question
		if err := json.Unmarshal(input.Bytes(), &asked); err != nil {
			panic(err)
		}
		if err := output.Encode(read(asked)); err != nil {
			panic(err)
		}
	}
}

func read(asked question) answer {
	if asked.Integer != nil {
		value, err := strconv.ParseInt(*asked.Integer, 10, 64)
		if err != nil {
			return answer{Error: err.Error()}
		}
		return answer{Digits: strconv.FormatInt(value, 10)}
	}
	if asked.Quantity != nil {
		quantity, err := resource.ParseQuantity(*asked.Quantity)
		if err != nil {
			return answer{Error: err.Error()}
		}
		value := quantity.AsDec()
		return answer{Digits: value.UnscaledBig().String(), Scale: int(value.Scale())}
	}
	return selected(asked)
}

func selected(asked question) answer {
	compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(asked.Cel, cel.Options{})
	if compiled.Error != nil {
		return answer{Error: compiled.Error.Error()}
	}
	found := answer{}
	for _, device := range asked.Devices {
		input := cel.Device{Driver: asked.Driver, Attributes: device.Attributes, Capacity: device.Capacity}
		matches, _, err := compiled.DeviceMatches(context.Background(), input)
		if err != nil {
			found.Matches = append(found.Matches, "error")
		} else {
			found.Matches = append(found.Matches, strconv.FormatBool(matches))
		}
	}
	return found
}
