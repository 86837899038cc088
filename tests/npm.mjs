// npm.mjs: packages from npm for tests that compare Cairn with programs of others.
//
// A registry that does not answer is the one reason to skip such a test. Everything else (a version that does not exist, a
// package that does not install) is a failure: it would not go away by itself, and nobody would see that the test never runs.
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'

const NO_ANSWER = /\b(E?AI_AGAIN|ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ESOCKETTIMEDOUT|ERR_SOCKET_TIMEOUT|EHOSTUNREACH|ENETUNREACH|EPIPE|E429|E50[0-9]|FETCH_ERROR)\b|network|socket hang up/i

// Installs packages ('ajv@8.20.0', ...) into a folder that is there. Does not return if it cannot: exit code 77 and one line
// when the registry did not answer, 1 and what npm said otherwise.
export function install(folder, packages, seconds = 120) {
  writeFileSync(join(folder, 'package.json'), '{"private":true}')
  const flags = ['--no-audit', '--no-fund', '--ignore-scripts', '--fetch-retries=0', '--fetch-timeout=20000']
  try {
    execFileSync('npm', ['install', ...flags, ...packages], { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'], timeout: seconds * 1000 })
    return
  } catch (error) {
    const late = error.code === 'ETIMEDOUT'
    const said = String(error.stderr ?? error.message).trim().split('\n').filter((line) => !line.includes('npm warn'))
    if (late || said.some((line) => NO_ANSWER.test(line))) {
      console.log(`the npm registry did not answer: ${late ? `nothing in ${seconds} s` : said[0]}`)
      process.exit(77)
    }
    console.log(`npm could not install ${packages.join(' ')}:\n${said.join('\n')}`)
    process.exit(1)
  }
}
