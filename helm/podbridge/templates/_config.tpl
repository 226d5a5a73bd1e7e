{{/*
The configuration file of all parts: what follows from the release and its Secrets, then values of slurm-bridge's chart,
then .Values.config, which wins.
*/}}
{{- define "podbridge.config" -}}
{{- $name := include "podbridge.fullname" . -}}
{{- $own := .Values.config | default dict -}}
{{- $admission := dict "serviceName" (printf "%s-admission" $name) "serviceNamespace" .Release.Namespace -}}
{{- if or .Values.admission.certManager.enabled .Values.admission.tls.existingSecret }}
{{- $_ := set $admission "certDir" "/etc/podbridge/webhook-tls" }}
{{- end }}
{{- $users := list }}
{{- range $part := list "scheduler" "controllers" }}
{{- if (index $.Values $part).serviceAccount.name }}
{{- $users = append $users (printf "system:serviceaccount:%s:%s" $.Release.Namespace (include "podbridge.account" (list $ $part))) }}
{{- end }}
{{- end }}
{{- with concat $users ((($own.admission).trustedUsers) | default list) }}{{ $_ := set $admission "trustedUsers" . }}{{ end }}
{{- $config := dict "installation" $name "admission" $admission "leaderElection" (dict "namespace" .Release.Namespace) -}}
{{- if eq (first .Values.ipFamilies | default "") "IPv6" }}
{{- $_ := set $admission "host" "::" }}
{{- $_ := set $config "serving" (dict "host" "::") }}
{{- end }}
{{- with .Values.hints }}
{{- if .enabled }}
{{- $files := dict "tokenFile" "/etc/podbridge/hints/token" "certFile" "/etc/podbridge/hints/tls.crt" "keyFile" "/etc/podbridge/hints/tls.key" }}
{{- $_ := set $config "hints" (merge (dict "port" .port) $files (ternary (dict "host" "::") dict (eq (first $.Values.ipFamilies | default "") "IPv6"))) }}
{{- end }}
{{- end }}
{{- $aliases := include "podbridge.aliases" . | fromYaml -}}
{{- $config = mergeOverwrite $config $aliases -}}
{{- $slurm := dict -}}
{{- if include "podbridge.jwtSecret" . }}{{ $_ := set $slurm "jwtFile" "/etc/podbridge/slurm-jwt/token" }}{{ end }}
{{- with .Values.slurm.tls.existingSecret }}
{{- $_ := set $slurm "caFile" "/etc/podbridge/slurm-tls/ca.crt" }}
{{- if $.Values.slurm.tls.clientCertificate }}
{{- $_ := set $slurm "certFile" "/etc/podbridge/slurm-tls/tls.crt" }}
{{- $_ := set $slurm "keyFile" "/etc/podbridge/slurm-tls/tls.key" }}
{{- end }}
{{- end }}
{{- with $slurm }}{{ $_ := set $config "slurm" . }}{{ end }}
{{- with include "podbridge.natsClient" . | fromYaml }}{{ $_ := set $config "pools" (dict "nats" .) }}{{ end }}
{{- if .Values.redis.enabled }}
{{- $url := printf "redis://%s-redis.%s.svc:6379/0" $name .Release.Namespace }}
{{- $store := dict "kind" "redis" "redis" (dict "url" $url "passwordFile" "/etc/podbridge/redis/password") }}
{{- $_ := set $config "pools" (merge (dict "store" $store) ($config.pools | default dict)) }}
{{- else if and .Values.nats.enabled .Values.nats.jetstream.enabled }}
{{- $_ := set $config.pools "store" (dict "kind" "nats" "nats" (dict "bucket" .Values.nats.jetstream.bucket)) }}
{{- end }}
{{- $result := mergeOverwrite $config (deepCopy $own) -}}
{{- with $admission.trustedUsers }}{{ $_ := set $result.admission "trustedUsers" . }}{{ end }}
{{- toYaml $result }}
{{- end }}

{{/* The section pools.nats of the configuration, as far as it follows from Secrets and the server of this release. */}}
{{- define "podbridge.natsClient" -}}
{{- $nats := .Values.nats -}}
{{- $result := dict -}}
{{- if $nats.enabled }}
{{- $scheme := ternary "tls" "nats" (not (empty $nats.tls.existingSecret)) }}
{{- $host := printf "%s-nats.%s.svc" (include "podbridge.fullname" .) .Release.Namespace }}
{{- $_ := set $result "servers" (list (printf "%s://%s:4222" $scheme $host)) }}
{{- if $nats.tls.existingSecret }}{{ $_ := set $result "caFile" "/etc/podbridge/nats-ca/ca.crt" }}{{ end }}
{{- if $nats.existingSecret }}
{{- $_ := set $result "seedFile" "/etc/podbridge/nats/hub.seed" }}
{{- else }}
{{- $_ := set $result "user" "hub" }}
{{- $_ := set $result "passwordFile" "/etc/podbridge/nats/password" }}
{{- end }}
{{- else if $nats.client.existingSecret }}
{{- if $nats.client.user }}
{{- $_ := set $result "user" $nats.client.user }}
{{- $_ := set $result "passwordFile" "/etc/podbridge/nats/password" }}
{{- else }}
{{- $_ := set $result "seedFile" "/etc/podbridge/nats/hub.seed" }}
{{- end }}
{{- if $nats.client.ca }}{{ $_ := set $result "caFile" "/etc/podbridge/nats/ca.crt" }}{{ end }}
{{- end }}
{{- toYaml $result }}
{{- end }}

{{/* Values by the names of slurm-bridge's chart, as keys of the configuration. */}}
{{- define "podbridge.aliases" -}}
{{- $aliases := dict -}}
{{- range $section, $keys := dict "sharedConfig" (list "slurmRestApi") "schedulerConfig" (list "schedulerName" "mcsLabel" "partition") "admission" (list "managedNamespaces" "managedNamespaceSelector") }}
{{- range $key := $keys }}
{{- $values := index $.Values $section }}
{{- $value := index $values $key }}
{{- if not (kindIs "invalid" $value) }}
{{- if and (hasKey ($.Values.config | default dict) $key) (ne (toJson $value) (toJson (index $.Values.config $key))) }}
{{- fail (printf "%s.%s: %s differs from config.%s: %s; set only one of them" $section $key (toJson $value) $key (toJson (index $.Values.config $key))) }}
{{- end }}
{{- if not (and (eq $key "managedNamespaceSelector") (empty $value)) }}
{{- $_ := set $aliases $key $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $aliases }}
{{- end }}

{{/* The Secret with the Slurm token as JSON {name, key}; empty: none. */}}
{{- define "podbridge.jwtSecret" -}}
{{- $name := .Values.slurm.jwt.existingSecret -}}
{{- $key := .Values.slurm.jwt.key -}}
{{- with .Values.sharedConfig.slurmJwtSecret }}
{{- if kindIs "string" . }}
{{- $name = . }}
{{- $key = "auth-token" }}
{{- else }}
{{- $name = default $name .name }}
{{- $key = default (ternary $key "SLURM_JWT" (empty .name)) .key }}
{{- end }}
{{- end }}
{{- if and $name (include "podbridge.hasSlurm" .) }}
{{- toJson (dict "name" $name "key" $key) }}
{{- end }}
{{- end }}

{{/* Whether a colocated Slurm is configured: "true" or nothing. */}}
{{- define "podbridge.hasSlurm" -}}
{{- $own := .Values.config | default dict -}}
{{- $url := "default" -}}
{{- with .Values.sharedConfig }}{{ if kindIs "string" .slurmRestApi }}{{ $url = .slurmRestApi }}{{ end }}{{ end -}}
{{- if hasKey $own "slurmRestApi" }}{{ $url = $own.slurmRestApi }}{{ end -}}
{{- if $url }}true{{ end }}
{{- end }}
