{{/* Checks of values that a JSON schema cannot express. Each message names the value and what is allowed. */}}
{{- define "podbridge.validate" -}}
{{- $name := include "podbridge.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,25}[a-z0-9])?$" $name) }}
{{- fail (printf "the name of the installation is %q; allowed: 1 to 27 of a-z, 0-9 and -, beginning with a letter; set fullnameOverride" $name) }}
{{- end }}
{{- $config := include "podbridge.config" . | fromYaml -}}
{{- range $part := list "scheduler" "controllers" }}
{{- $replicas := int (index $.Values $part).replicas }}
{{- $elects := true }}
{{- with $config.leaderElection }}{{ if hasKey . "leaderElect" }}{{ $elects = .leaderElect }}{{ end }}{{ end }}
{{- if and (gt $replicas 1) (not $elects) }}
{{- fail (printf "%s.replicas: %d is not allowed with config.leaderElection.leaderElect: false; allowed: 1" $part $replicas) }}
{{- end }}
{{- end }}
{{- with ($config.leaderElection).namespace }}
{{- if ne . $.Release.Namespace }}
{{- fail (printf "config.leaderElection.namespace: %s is not allowed; allowed: %s, the namespace of the release, to whose Leases the chart grants access" . $.Release.Namespace) }}
{{- end }}
{{- end }}
{{- range $key := list "secretName" "webhookName" }}
{{- if hasKey $config.admission $key }}
{{- fail (printf "config.admission.%s: %s is not allowed: the chart grants access to the names that follow from fullnameOverride; remove the key" $key (index $config.admission $key)) }}
{{- end }}
{{- end }}
{{- $ports := dict "admission.port" ($config.admission).port "hints.port" ($config.hints).port "pools.kubeletPort" ($config.pools).kubeletPort }}
{{- $ports = merge $ports (dict "serving.healthPort" ($config.serving).healthPort "serving.metricsPort" ($config.serving).metricsPort) }}
{{- range $key, $port := $ports }}
{{- if and (not (kindIs "invalid" $port)) (eq (int $port) 0) }}
{{- fail (printf "config.%s: 0 is not allowed: Services and policies need its number; allowed: 1 to 65535" $key) }}
{{- end }}
{{- end }}
{{- range $url := append ((($config.pools).nats).servers | default list) ($config.slurmRestApi | default "") }}
{{- if contains "@" $url }}
{{- fail (printf "config.slurmRestApi, config.pools.nats.servers: a URL at %s has a user, which is not allowed, since other users read it; allowed: a Secret in slurm.jwt or nats.client" (splitList "@" $url | last)) }}
{{- end }}
{{- end }}
{{- if and .Values.controllers.hostNetwork (include "podbridge.hasPools" .) (eq (include "podbridge.port" (list $config.pools "kubeletPort" 10250)) "10250") }}
{{- fail "controllers.hostNetwork: true with pools: config.pools.kubeletPort: 10250 is the port of the node's kubelet; allowed: another port, for example 10260" }}
{{- end }}
{{- if and .Values.admission.certManager.enabled .Values.admission.tls.existingSecret }}
{{- fail (printf "admission.certManager.enabled: true and admission.tls.existingSecret: %s; set only one of them" .Values.admission.tls.existingSecret) }}
{{- end }}
{{- range .Values.nats.pools }}
{{- if or (eq . "hub") (not (regexMatch "^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$" .)) }}
{{- fail (printf "nats.pools: %q is not allowed; allowed: 1 to 32 of a-z, 0-9 and -, without - at the beginning or end, and not hub" .) }}
{{- end }}
{{- end }}
{{- if and .Values.nats.enabled (or .Values.nats.client.existingSecret ((.Values.config.pools).nats).servers) }}
{{- fail "nats.enabled with nats.client.existingSecret or config.pools.nats.servers: the release has its own server; remove one of them" }}
{{- end }}
{{- if and .Values.redis.enabled .Values.nats.jetstream.enabled }}
{{- fail "redis.enabled: true and nats.jetstream.enabled: true: there is one store of pools; set only one of them" }}
{{- end }}
{{- if and .Values.redis.enabled ((((.Values.config.pools).store).redis).url) }}
{{- fail "redis.enabled with config.pools.store.redis.url: the release has its own server; remove one of them" }}
{{- end }}
{{- if and .Values.nats.jetstream.enabled (not .Values.nats.persistence.enabled) }}
{{- fail "nats.jetstream.enabled: true requires nats.persistence.enabled: true: the store of pools must survive a restart of the server" }}
{{- end }}
{{- range $key := list "jetstream" "persistence" }}
{{- if and (not $.Values.nats.enabled) (index $.Values.nats $key).enabled }}
{{- fail (printf "nats.%s.enabled: true is not allowed with nats.enabled: false: it is for the server of this release; allowed: false; the store of another server is config.pools.store" $key) }}
{{- end }}
{{- end }}
{{- with .Values.nats.pools }}
{{- if ne (len .) (len (uniq .)) }}
{{- fail (printf "nats.pools: %s has a pool twice; allowed: different names" (toJson .)) }}
{{- end }}
{{- end }}
{{- with .Values.dashboard }}
{{- if .ingress.enabled }}
{{- if not (and .enabled .tls.existingSecret .ingress.host) }}
{{- fail "dashboard.ingress.enabled: true requires dashboard.enabled: true, dashboard.tls.existingSecret and dashboard.ingress.host" }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.slurm.tokenRenewal }}
{{- if .enabled }}
{{- if not (include "podbridge.jwtSecret" $) }}
{{- fail "slurm.tokenRenewal.enabled: true requires config.slurmRestApi and slurm.jwt.existingSecret: there is no token to renew" }}
{{- end }}
{{- if not .existingSecret }}
{{- fail "slurm.tokenRenewal.existingSecret is required with slurm.tokenRenewal.enabled: a Secret with Slurm's key; on a host of Slurm, `podbridge token renew` needs no key" }}
{{- end }}
{{- end }}
{{- end }}
{{- $mounts := list "config" "tmp" "webhook-tls" "slurm-jwt" }}
{{- if .Values.slurm.tls.existingSecret }}{{ $mounts = append $mounts "slurm-tls" }}{{ end }}
{{- if .Values.hints.enabled }}{{ $mounts = append $mounts "hints" }}{{ end }}
{{- if or .Values.nats.enabled .Values.nats.client.existingSecret }}{{ $mounts = concat $mounts (list "nats" "nats-ca") }}{{ end }}
{{- if .Values.redis.enabled }}{{ $mounts = append $mounts "redis" }}{{ end }}
{{- range .Values.secretMounts }}
{{- if has .name $mounts }}
{{- fail (printf "secretMounts: the name %s is reserved or used twice; allowed: a name that is not among %s" .name (join ", " $mounts)) }}
{{- end }}
{{- $mounts = append $mounts .name }}
{{- end }}
{{- $own := include "podbridge.selectorLabels" (list . "x") | fromYaml }}
{{- $labels := dict "commonLabels" .Values.commonLabels "podLabels" .Values.podLabels }}
{{- range $part := list "admission" "scheduler" "controllers" "dashboard" "plugin" "nats" "redis" }}
{{- $_ := set $labels (printf "%s.podLabels" $part) (index $.Values $part).podLabels }}
{{- end }}
{{- range $field, $given := $labels }}
{{- range $key, $value := $given }}
{{- if hasKey $own $key }}
{{- fail (printf "%s: the label %s is not allowed: the selectors of the chart use it; allowed: other labels" $field $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $part := list "admission" "scheduler" "controllers" "dashboard" }}
{{- with (index $.Values $part).pdb }}
{{- if and .enabled (kindIs "invalid" .minAvailable) (kindIs "invalid" .maxUnavailable) }}
{{- fail (printf "%s.pdb: minAvailable and maxUnavailable are null with enabled: true; allowed: a number or a percentage for one of them" $part) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.plugin }}
{{- if .enabled }}
{{- if not (($config.pools).nats).servers }}
{{- fail "plugin.enabled: true requires a NATS server; set nats.enabled or config.pools.nats.servers" }}
{{- end }}
{{- if and (or .interlink.enabled .oauth2Proxy.enabled) (not .tls.existingSecret) }}
{{- fail "plugin.tls.existingSecret is required with plugin.interlink.enabled or plugin.oauth2Proxy.enabled: a Secret with tls.crt and tls.key, and ca.crt if interLink's API server verifies client certificates itself" }}
{{- end }}
{{- if and (not .interlink.enabled) (not .oauth2Proxy.enabled) (not .existingSecret) }}
{{- fail "plugin.existingSecret is required without plugin.interlink.enabled and plugin.oauth2Proxy.enabled: a Secret with the bearer token of virtual kubelets" }}
{{- end }}
{{- end }}
{{- end }}
{{- if not (or (include "podbridge.hasSlurm" .) (include "podbridge.hasPools" .)) }}
{{- fail "config.slurmRestApi is empty and no pool is configured; set config.slurmRestApi, nats.enabled, or one of config.pools.nats.servers, config.pools.interlink, config.pools.nunet" }}
{{- end }}
{{- if and (not $config.managedNamespaceSelector) (has .Release.Namespace ($config.managedNamespaces | default (list "slurm-bridge"))) }}
{{- fail (printf "config.managedNamespaces: %s is the namespace of the release; its own pods could not start while the webhook is down; allowed: any other namespace" .Release.Namespace) }}
{{- end }}
{{- range $config.managedNamespaces }}
{{- if and (not $config.managedNamespaceSelector) (has . (list "kube-system" "kube-public" "kube-node-lease")) }}
{{- fail (printf "config.managedNamespaces: %s is not allowed: its pods could not start while the webhook is down; allowed: any namespace that is not of Kubernetes" .) }}
{{- end }}
{{- end }}
{{- if and .Release.IsInstall .Values.controllers.enabled (include "podbridge.hasSlurm" .) (not (kindIs "bool" ($config.nodes | default dict).taint)) }}
{{- fail (printf "config.nodes.taint is not set: podbridge would taint each node of Slurm with the effect NoExecute, which evicts all pods there that do not tolerate %s; `podbridge check --before-install --config FILE` names them. Set config.nodes.taint to true to evict them, or to false to set no taint: the nodes then are not guarded" "slinky.slurm.net/managed-node") }}
{{- end }}
{{- range $part := list "admission" "scheduler" "controllers" }}
{{- $repository := ((index $.Values $part).image | default dict).repository | default "" }}
{{- if contains "slurm-bridge-" $repository }}
{{- fail (printf "%s.image.repository: %s is an image of slurm-bridge; remove the key or name an image of podbridge" $part $repository) }}
{{- end }}
{{- end }}
{{- end }}
