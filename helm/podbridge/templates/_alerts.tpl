{{/*
The rules of files/alerts.yaml that apply to the values of this release: for its parts, and for its policies. If the
chart creates the ServiceMonitor, they read the metrics of this namespace alone: those of other installations are not
mixed with them.
*/}}
{{- define "podbridge.alerts" -}}
{{- $file := required "monitoring.prometheusRule.enabled: the chart has no file files/alerts.yaml" (.Files.Get "files/alerts.yaml") | fromYaml -}}
{{- $guards := and .Values.policies.enabled (ne (toJson (((include "podbridge.config" . | fromYaml).nodes | default dict).taint)) "false") -}}
{{- $groups := list -}}
{{- range $group := $file.groups }}
{{- $rules := list }}
{{- range $rule := $group.rules }}
{{- $parts := list }}
{{- range splitList " or " $rule.expr }}
{{- $part := regexFind `"part", "(admission|scheduler|controllers)"` . | trimPrefix `"part", "` | trimSuffix `"` }}
{{- if or (ne $rule.alert "PodbridgePartDown") (index $.Values $part).enabled }}
{{- $parts = append $parts . }}
{{- end }}
{{- end }}
{{- $expression := join " or " $parts }}
{{- if $.Values.monitoring.serviceMonitor.enabled }}
{{- $only := printf "${1}{namespace=%q" $.Release.Namespace }}
{{- $expression = regexReplaceAll `(podbridge_[a-z_]+)\{` $expression (printf "%s, " $only) }}
{{- $expression = regexReplaceAll `(podbridge_[a-z_]+)([^a-z_{]|$)` $expression (printf "%s}${2}" $only) }}
{{- end }}
{{- if and $expression (or $guards (ne $rule.alert "PodbridgeNodesUnguarded")) }}
{{- $rules = append $rules (set $rule "expr" $expression) }}
{{- end }}
{{- end }}
{{- $groups = append $groups (set $group "rules" $rules) }}
{{- end }}
{{- toYaml (dict "groups" $groups) }}
{{- end }}
