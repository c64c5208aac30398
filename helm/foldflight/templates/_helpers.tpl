{{- define "foldflight.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* The names of Services have no dots; those of releases may. */ -}}
{{- define "foldflight.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "foldflight.name" .) .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "foldflight.name" .) | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* What never changes while a release lives: selectors cannot be changed. */ -}}
{{- define "foldflight.selector" -}}
app.kubernetes.io/name: {{ include "foldflight.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "foldflight.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ default .Chart.AppVersion .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: foldflight
{{ include "foldflight.selector" . }}
{{- end -}}

{{- define "foldflight.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end -}}

{{- /* OpenShift gives each project a range of users, and refuses all others. */ -}}
{{- define "foldflight.podSecurity" -}}
{{- $security := deepCopy .Values.podSecurityContext -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- range list "runAsUser" "runAsGroup" "fsGroup" -}}
{{- if eq (int (get $security .)) 10001 }}{{ $_ := unset $security . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toYaml $security -}}
{{- end -}}

{{- /* What is in the Secrets that a server reads once, when it starts; it reads tokens and bundle keys again by itself.
Empty where Helm asks no cluster (helm template). */ -}}
{{- define "foldflight.secrets" -}}
{{- range list .Values.auth.stateKeysSecret .Values.tls.secret .Values.tls.clientCaSecret -}}
{{- with . }}{{ with lookup "v1" "Secret" $.Release.Namespace . }}{{ toJson .data }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* The settings file: JSON's strings, numbers and lists are TOML's too. */ -}}
{{- define "foldflight.settings" -}}
{{- $chart := dict
  "host" "0.0.0.0"
  "port" 8815
  "health_port" 8816
  "http_port" 8817
  "workers" .Values.workers
  "drain_s" .Values.drainSeconds
  "peers" (list (printf "%s-peers" (include "foldflight.fullname" .)))
-}}
{{- if .Values.auth.tokensSecret }}{{ $_ := set $chart "tokens_file" "/etc/foldflight/tokens/tokens" }}{{ end -}}
{{- if .Values.auth.bundleKeysSecret }}{{ $_ := set $chart "bundle_keys_file" "/etc/foldflight/bundle-keys/bundle-keys" }}{{ end -}}
{{- if .Values.tls.secret }}
{{- $_ := set $chart "tls_cert_file" "/etc/foldflight/tls/tls.crt" }}
{{- $_ := set $chart "tls_key_file" "/etc/foldflight/tls/tls.key" }}
{{- end -}}
{{- if .Values.tls.clientCaSecret }}{{ $_ := set $chart "tls_client_ca_file" "/etc/foldflight/client-ca/ca.crt" }}{{ end -}}
{{- with .Values.traces.endpoint }}{{ $_ := set $chart "otlp_endpoint" . }}{{ end -}}
{{- if .Values.recordings.volume }}{{ $_ := set $chart "record" "/recordings" }}{{ end -}}
{{- range $name, $value := merge $chart .Values.settings }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end -}}

{{- /* Whether the status page is shown outside of the cluster. */ -}}
{{- define "foldflight.showsStatus" -}}
{{- if or .Values.routes.status.enabled .Values.ingress.status.enabled }}yes{{ end -}}
{{- end -}}
