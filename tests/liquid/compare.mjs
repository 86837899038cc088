// compare.mjs [--write]: is `expected` in cases.json still what liquidjs renders? With --write it is made so.
//
// liquidjs comes from npm, into a temporary folder that is removed again; LIQUIDJS_VERSION chooses another one.
// Exit code 0: all equal; 1: some differ; 77: the registry did not answer, so nothing was compared.
import { createRequire } from 'node:module'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { install } from '../npm.mjs'

process.env.TZ = 'UTC' // a time without an offset is UTC, as it is for us
const version = process.env.LIQUIDJS_VERSION ?? '10.30.1'
const file = join(dirname(fileURLToPath(import.meta.url)), 'cases.json')
const write = process.argv.includes('--write')

function render(engine, { template, context }) {
  try {
    return engine.parseAndRenderSync(template, structuredClone(context))
  } catch (error) {
    return { error: error.message }
  }
}

function compare(Liquid) {
  const engine = new Liquid({ timezoneOffset: 0 })
  const cases = JSON.parse(readFileSync(file, 'utf8'))
  let differ = 0
  for (const [i, item] of cases.entries()) {
    const got = render(engine, item)
    if (got === item.expected) continue
    differ++
    if (!write || typeof got !== 'string') {
      console.log(`case ${i}: ${JSON.stringify(item.template)}`)
      console.log(`  liquidjs: ${JSON.stringify(got)}\n  expected: ${JSON.stringify(item.expected)}`)
    }
    item.expected = got
  }
  if (write) writeFileSync(file, '[\n' + cases.map((item) => '  ' + JSON.stringify(item)).join(',\n') + '\n]\n')
  console.log(`${cases.length} cases, liquidjs ${version}: ${differ} ${write ? 'written' : 'differ'}`)
  return differ === 0 || write ? 0 : 1
}

const folder = mkdtempSync(join(tmpdir(), 'liquidjs-'))
process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
install(folder, [`liquidjs@${version}`], 60)
process.exitCode = compare(createRequire(join(folder, 'package.json'))('liquidjs').Liquid)
