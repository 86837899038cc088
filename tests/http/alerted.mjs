// alerted.mjs: events of the tenant "alerted" as NDJSON, for `cairn ledger append --validation record`: two runs, each with three that its state forbids.
import { event, ndjson } from './harness.mjs'

const out = []
for (const runId of ['alerted-1', 'alerted-2']) {
  const add = (type, more) => out.push(event('alerted', runId, type, more))
  add('RunStarted')
  add('RunResumed')
  add(runId === 'alerted-1' ? 'RunResumed' : 'StepCompleted', runId === 'alerted-1' ? { logicalAttemptId: 2 } : { stepId: 's' })
  add('RunCompleted')
  add('RunPaused')
}
process.stdout.write(ndjson(out))
